// SPDX-License-Identifier: MIT OR Apache-2.0
// Executes the plugin's magic instructions: stops the recording. With two arguments has it begin
// again, with a stand-in and settings at these addresses.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#define MAGIC(number, argument) \
	asm volatile(".byte 0x0f, 0x1f, 0x80, " #number ", 0x42, 0x72, 0x54" \
		     :: "a"(argument) : "memory")

static void wait(void)
{
	for (volatile int i = 0; i < 1000; i++)
		;
}

int main(int count, char **arguments)
{
	MAGIC(2, 0);
	wait();
	if (count > 2) {
		uint64_t setup[] = {
			strtoull(arguments[1], NULL, 16), 0, 0, strtoull(arguments[2], NULL, 16), -1
		};
		MAGIC(4, setup);
		wait();
		// Armed: nothing happens, wherever the arguments are.
		MAGIC(4, 1L);
		MAGIC(3, -1L);
	}
	puts("it lives");
	return 0;
}
