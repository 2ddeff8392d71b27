// Which instruction set the kernels use. Chosen once per process: the best that this CPU and its kernel
// grant, or the one that the environment variable TILEFORMER_ISA names.
#pragma once

#include <string>
#include <vector>

#include "tileformer/status.h"

namespace tileformer {

// Ordered best first.
enum class Isa { amx, avx512_bf16, avx512, avx2, neon, portable };

const char* name_of(Isa isa);

// Compiled into this binary and granted by this machine, best first. Always ends with portable.
const std::vector<Isa>& supported_isas();

// Compiled into this binary, best first.
const std::vector<Isa>& compiled_isas();

// The ISA in force. Fails when TILEFORMER_ISA names one that is unknown or not supported here: the message
// lists what is. Every operator returns that failure.
Status active_isa(Isa* isa);

// Forces an ISA for this process from now on (as TILEFORMER_ISA does); an empty name returns to the default.
Status force_isa(const std::string& name);

}  // namespace tileformer
