// SPDX-License-Identifier: MIT OR Apache-2.0
// Misses in caches of all sizes: lines of code 4 KiB apart, lines of data 64 KiB apart, and a table
// of 16 KiB, all in an order that looks random. No access crosses lines, unless CROSSING is set.

#ifdef CROSSING
enum { SHIFT = 60 };
#define BEFORE_JUMP "63"
#else
enum { SHIFT = 0 };
#define BEFORE_JUMP "62"
#endif

// A jump that ends at the end of a line, or one byte later. Nothing else touches the next line.
#ifdef __x86_64__
#define JUMP \
	__asm__ volatile(".nops " BEFORE_JUMP "; .byte 0xeb, 2f - 1f; 1: .p2align 7; 2:")
#else
#define JUMP
#endif

#if defined(__x86_64__) && !defined(CROSSING)
// No instruction crosses 64 bytes.
__asm__(".bundle_align_mode 6");
#endif

enum { ROUNDS = 200, LINE = 64, WIDE = 32, STRIDE = 1 << 16, TABLE = 16 << 10 };

// The column and the hot line share a set with the loop's code. Each round uses the hot line, so it
// stays in the first level.
enum { COLUMN = TABLE + LINE, HOT = COLUMN + WIDE * STRIDE };

static char data[(WIDE + 1) * STRIDE] __attribute__((aligned(1 << 16)));

static long *place(unsigned long offset)
{
	return (long *)(data + offset + SHIFT);
}

#define FAR(number) \
	__attribute__((noinline, aligned(4096))) static long far##number(long value, long other) \
	{ \
		JUMP; \
		return value * 5 + (other ^ number); \
	}
FAR(0) FAR(1) FAR(2) FAR(3) FAR(4) FAR(5) FAR(6) FAR(7)
FAR(8) FAR(9) FAR(10) FAR(11) FAR(12) FAR(13) FAR(14) FAR(15)

static long (*const functions[])(long, long) = {
	far0, far1, far2, far3, far4, far5, far6, far7,
	far8, far9, far10, far11, far12, far13, far14, far15,
};

__attribute__((noreturn, used, aligned(4096))) static void walk(void)
{
	unsigned long seed = 1;
	long value = 0;

	for (int round = 0; round < ROUNDS; round++) {
		// D. Knuth's MMIX.
		seed = seed * 6364136223846793005 + 1442695040888963407;
		unsigned long random = seed >> 33;
		*place(random % (TABLE / sizeof(long)) * sizeof(long)) += value;
		value += *place(COLUMN + (random >> 11 & random >> 21) % WIDE * STRIDE);
		value += *place(HOT - sizeof(long));
		// Crosses from the hot line to one that the first level may have lost.
		if (random >> 20 & 1)
			value += *place(HOT);
		value = functions[(random >> 16) % 16](value, random);
	}
#ifdef __x86_64__
	__asm__ volatile("mov $60, %eax; xor %edi, %edi; syscall");
#else
	__asm__ volatile("mov x8, 93; mov x0, 0; svc 0");
#endif
	__builtin_unreachable();
}

// Aligns the stack.
#ifdef __x86_64__
__asm__(".globl _start\n_start: call walk");
#else
__asm__(".globl _start\n_start: bl walk");
#endif
