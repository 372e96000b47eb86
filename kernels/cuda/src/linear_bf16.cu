#include "linear.h"

FORMAT(bf16, BF16)
