/* One object for the compiled code of switches. */
#include "pfcloop.h"
#include "rows.h"

API u32 hd_switch_version(void) { return SWITCH_VERSION; }

/* Sizes of the structs, which Python compares with its own. */
API void hd_switch_sizes(u32 *out)
{
	out[0] = sizeof(struct core);
	out[1] = sizeof(struct port);
	out[2] = sizeof(struct gate);
	out[3] = sizeof(struct work);
	out[4] = sizeof(struct event);
	out[5] = sizeof(struct reader);
}
