#pragma once

#define TILEFORMER_VERSION "0.1.0"
