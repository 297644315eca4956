// SPDX-License-Identifier: MIT OR Apache-2.0
// Sorts, formats and hashes with libc: some millions of accesses, of which some cross lines.

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { COUNT = 2000, SLOTS = 1 << 16 };

static unsigned long table[SLOTS];

static int compare(const void *a, const void *b)
{
	long left = *(const long *)a, right = *(const long *)b;

	return (left > right) - (left < right);
}

int main(void)
{
	long *numbers = malloc(COUNT * sizeof(*numbers));
	char *text = malloc(COUNT * 32), *end = text;

	for (int i = 0; i < COUNT; i++)
		numbers[i] = random();
	qsort(numbers, COUNT, sizeof(*numbers), compare);
	for (int i = 0; i < COUNT; i++)
		end += sprintf(end, "%ld,", numbers[i]);
	for (char *word = strtok(text, ","); word; word = strtok(NULL, ",")) {
		unsigned long hash = 14695981039346656037u;

		for (const char *at = word; *at; at++)
			hash = (hash ^ *at) * 1099511628211;
		table[hash % SLOTS] += strlen(word);
	}
	free(text);
	free(numbers);
	return 0;
}
