// SPDX-License-Identifier: MIT OR Apache-2.0
// Samples branch records by the PMU's overflow interrupts on arm64, while the plugin records all
// branches between its two magic instructions. Prints the kernel's depth, and each sample's
// records, newest first.
#define _GNU_SOURCE
#include "branches.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/wait.h>

// `movz xzr, #imm16`, as selftests/protocol/src/magic.rs.
#define ARM __asm__ volatile(".inst 0xd28f683f")
#define DISARM __asm__ volatile(".inst 0xd28f685f")

#define PAGE 4096
#define DATA (64 * PAGE)
// In nanoseconds, with the clock of the host: a plugin that records takes long.
#define PERIOD 400000
// The trace keeps a million branches: about 1400 of each round.
#define ROUNDS 500
#define WANTED 12

// Branches of each kind, in a loop.
void chain(void);
__asm__(".balign 64\n"
	"chain:\n"
	"	stp x29, x30, [sp, #-16]!\n"
	"	mov w10, #200\n"
	"1:	bl leaf\n"
	"	adr x9, leaf\n"
	"	blr x9\n"
	"	cbz xzr, 2f\n"
	"	nop\n"
	"2:	adr x9, 3f\n"
	"	br x9\n"
	"	nop\n"
	"3:	b 4f\n"
	"	nop\n"
	"4:	subs w10, w10, #1\n"
	"	b.ne 1b\n"
	"	ldp x29, x30, [sp], #16\n"
	"	ret\n"
	"leaf:	ret\n");

static void print(const char *name, const char *data, uint64_t head)
{
	static char record[1 << 16];

	for (uint64_t at = 0; at + sizeof(struct perf_event_header) <= head;) {
		struct perf_event_header header;
		memcpy(&header, data + at % DATA, sizeof(header));
		if (!header.size)
			break;
		// A record may go on at the buffer's start.
		for (unsigned byte = 0; byte < header.size; byte++)
			record[byte] = data[(at + byte) % DATA];
		at += header.size;
		if (header.type != PERF_RECORD_SAMPLE)
			continue;
		uint64_t count;
		memcpy(&count, record + sizeof(header), sizeof(count));
		const struct perf_branch_entry *entries =
			(const void *)(record + sizeof(header) + sizeof(count));
		printf("sample %s %lu\n", name, (unsigned long)count);
		for (uint64_t entry = 0; entry < count; entry++)
			printf("%llx %llx %u\n", entries[entry].from, entries[entry].to,
			       entries[entry].type);
	}
}

static void samples(const char *name, uint64_t branches)
{
	struct perf_event_attr attr = {
		.size = sizeof(attr),
		.type = PERF_TYPE_HARDWARE,
		.config = PERF_COUNT_HW_CPU_CYCLES,
		.sample_period = PERIOD,
		.sample_type = PERF_SAMPLE_BRANCH_STACK,
		.branch_sample_type = branches | PERF_SAMPLE_BRANCH_TYPE_SAVE,
		.disabled = 1,
	};
	int event = syscall(SYS_perf_event_open, &attr, 0, -1, -1, PERF_FLAG_FD_CLOEXEC);
	if (event < 0) {
		printf("event %s %d\n", name, errno);
		return;
	}
	struct perf_event_mmap_page *page =
		mmap(NULL, PAGE + DATA, PROT_READ | PROT_WRITE, MAP_SHARED, event, 0);
	if (page == MAP_FAILED)
		exit(1);
	const volatile uint64_t *head = (const volatile uint64_t *)&page->data_head;

	ARM;
	ioctl(event, PERF_EVENT_IOC_ENABLE, 0);
	for (int round = 0; round < ROUNDS && *head < WANTED * 800; round++) {
		chain();
		// Into the kernel and back.
		syscall(SYS_getppid);
	}
	ioctl(event, PERF_EVENT_IOC_DISABLE, 0);
	DISARM;
	print(name, (const char *)page + PAGE, *head);
	munmap(page, PAGE + DATA);
	close(event);
}

// A 32-bit program whose load has the encoding of `msr BRBFCR_EL1, x0`. Exits with what it loads.
static const uint32_t a32[] = {
	// ELF header: static, ARM, EABI 5; one program header.
	0x464c457f, 0x00010101, 0, 0, 0x00280002, 1, 0x10054, 52, 0, 0x05000000, 0x00200034, 1, 0,
	// PT_LOAD of the whole file, readable and executable.
	1, 0, 0x10000, 0x10000, 0x74, 0x74, 5, 0x1000,
	0xe28f1034, // add r1, pc, #52
	0xe3a09000, // mov r9, #0
	0xe1500000, // cmp r0, r0
	0xd5119020, // ldrle r9, [r1, #-32]
	0xe1a00009, // mov r0, r9
	0xe3a07001, // mov r7, #1 (exit)
	0xef000000, // svc #0
	42,
};

static void run_32_bits(void)
{
	int file = memfd_create("a32", MFD_CLOEXEC), status = 0;
	if (write(file, a32, sizeof(a32)) != sizeof(a32))
		exit(1);
	pid_t child = fork();
	if (!child) {
		fexecve(file, (char *[]){ "a32", NULL }, (char *[]){ NULL });
		_exit(errno);
	}
	waitpid(child, &status, 0);
	printf("32-bit program: %d\n", WIFEXITED(status) ? WEXITSTATUS(status) : -1);
	fflush(stdout);
	close(file);
}

int main(void)
{
	run_32_bits();
	FILE *file = fopen("/sys/bus/event_source/devices/armv8_pmuv3/caps/branches", "r");
	int depth = 0;
	if (file && fscanf(file, "%d", &depth) == 1)
		printf("depth %d\n", depth);
	samples("user", PERF_SAMPLE_BRANCH_USER | PERF_SAMPLE_BRANCH_ANY);
	samples("kernel", PERF_SAMPLE_BRANCH_KERNEL | PERF_SAMPLE_BRANCH_ANY);
	samples("both", PERF_SAMPLE_BRANCH_USER | PERF_SAMPLE_BRANCH_KERNEL |
				PERF_SAMPLE_BRANCH_ANY);
	samples("returns", PERF_SAMPLE_BRANCH_USER | PERF_SAMPLE_BRANCH_KERNEL |
				   PERF_SAMPLE_BRANCH_ANY_RETURN);
	samples("stack", PERF_SAMPLE_BRANCH_USER | PERF_SAMPLE_BRANCH_CALL_STACK);
	fflush(stdout);
	return 0;
}
