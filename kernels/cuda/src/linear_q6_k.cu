#include "linear.h"

FORMAT(q6_k, Q6_K)
