#include "csrc/base/thread.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>

#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

namespace jax_fabric {

Result<std::thread> StartThread(const std::string& name, std::function<void()> run) {
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);  // inherited by the new thread
  std::thread thread;
  std::string failure;
  try {  // the only way that std::thread tells
    thread = std::thread(std::move(run));
  } catch (const std::system_error& error) {
    failure = error.what();
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (!thread.joinable()) {
    return MakeError(ErrorCode::kResourceExhausted, "thread '{}' could not be started: {}", name, failure);
  }
  pthread_setname_np(thread.native_handle(), name.substr(0, 15).c_str());  // the kernel keeps 15 characters
  return thread;
}

}  // namespace jax_fabric
