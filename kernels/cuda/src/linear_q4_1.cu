#include "linear.h"

FORMAT(q4_1, Q4_1)
