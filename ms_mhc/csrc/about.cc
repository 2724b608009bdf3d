// SPDX-License-Identifier: Apache-2.0
// What the library says of itself, so that whoever loads it can tell whether it is the one that belongs to the sources.
#include "export.h"
#include "kernels.h"

#if !defined(MHC_SOURCE_DIGEST)
#define MHC_SOURCE_DIGEST ""  // compiled by hand
#endif

// Of the sources and flags that it was compiled from; build.py computes it.
MHC_EXPORT const char *MhcSourceDigest() { return MHC_SOURCE_DIGEST; }

// The instruction set in use: baseline, avx2 or avx512. Empty if MS_MHC_CPU_ISA names one that is not to be had here.
MHC_EXPORT const char *MhcIsa() { return mhc::instruction_set(); }

// Those that MS_MHC_CPU_ISA may name here, separated by commas, the best one last.
MHC_EXPORT const char *MhcIsaNames() { return mhc::instruction_sets(); }
