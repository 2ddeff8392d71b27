// Everything.
#pragma once

#include "tileformer/attention.h"
#include "tileformer/attention_backward.h"
#include "tileformer/cross_entropy.h"
#include "tileformer/dtype.h"
#include "tileformer/executor.h"
#include "tileformer/isa.h"
#include "tileformer/kv_append.h"
#include "tileformer/kv_cache.h"
#include "tileformer/page_table.h"
#include "tileformer/peak.h"
#include "tileformer/philox.h"
#include "tileformer/status.h"
#include "tileformer/tensor_view.h"
#include "tileformer/version.h"
#include "tileformer/workspace.h"
