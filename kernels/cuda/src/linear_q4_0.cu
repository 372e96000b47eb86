#include "linear.h"

FORMAT(q4_0, Q4_0)
