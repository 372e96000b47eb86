#include "linear.h"

FORMAT(f16, F16)
