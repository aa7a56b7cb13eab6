// Queue pairs' and completion queues' tables of functions, which libfabric calls inline.
#ifndef JAX_FABRIC_ENGINE_DOMAINS_EFA_FAKESRD_WORK_REQUESTS_H_
#define JAX_FABRIC_ENGINE_DOMAINS_EFA_FAKESRD_WORK_REQUESTS_H_

#include "csrc/engine/domains/efa/fakesrd/objects.h"

namespace jax_fabric::fake_srd {

void FillTable(QueuePair& pair);
void FillTable(CompletionQueue& queue);
// Of the context.
void FillTable(ibv_context_ops& operations);

}  // namespace jax_fabric::fake_srd

#endif  // JAX_FABRIC_ENGINE_DOMAINS_EFA_FAKESRD_WORK_REQUESTS_H_
