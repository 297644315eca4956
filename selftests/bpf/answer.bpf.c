// SPDX-License-Identifier: GPL-2.0-only
/*
 * Hooks of the security modules that return a positive number, which no module does. The kernel
 * warns of one, and takes the other for a pointer.
 */
#include "tramplab.bpf.h"

#define NO_ERRNO 1

/* do_dentry_open() warns once. */
SEC("fmod_ret/security_file_open")
int warning(void *ctx)
{
	return NO_ERRNO;
}

/* path_openat() continues with ERR_PTR(1), which is no error. */
SEC("fmod_ret/security_file_alloc")
int oops(void *ctx)
{
	return NO_ERRNO;
}
