#include "linear.h"

FORMAT(f32, F32)
