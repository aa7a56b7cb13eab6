// What tests ask the double of GDRCopy's library.
#ifndef JAX_FABRIC_MOE_CUDA_GDRCOPY_DOUBLE_GDRAPI_DOUBLE_H_
#define JAX_FABRIC_MOE_CUDA_GDRCOPY_DOUBLE_GDRAPI_DOUBLE_H_

extern "C" {

// Pins and mappings that have not been given back.
int jf_gdr_double_open();
// The next call of that name ("gdr_open", "gdr_pin_buffer", "gdr_map") fails.
void jf_gdr_double_fail(const char* call);
}

#endif  // JAX_FABRIC_MOE_CUDA_GDRCOPY_DOUBLE_GDRAPI_DOUBLE_H_
