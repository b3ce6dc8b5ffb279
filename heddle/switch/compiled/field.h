/* What all code of this object shares. */
#ifndef HEDDLE_FIELD_H
#define HEDDLE_FIELD_H

#include "system.h"

#define API __attribute__((visibility("default")))

/* A field of the rows of one of the lab's maps, which are mapped into memory. */
struct field {
	u8 *base;
	u64 stride;
};

#endif
