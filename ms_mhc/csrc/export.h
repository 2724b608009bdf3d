// SPDX-License-Identifier: Apache-2.0
// A function that others look up in the library by its name.
#pragma once

#if defined(__GNUC__)
#define MHC_EXPORT extern "C" __attribute__((visibility("default")))
#else
#define MHC_EXPORT extern "C"
#endif
