#include "linear.h"

FORMAT(q8_0, Q8_0)
