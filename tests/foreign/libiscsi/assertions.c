/*
 * Writes down every assertion that a CUnit program makes.
 *
 * CUnit counts a test that gave up early ("[SKIPPED] ...") as passed. To tell a pass from a skip one has to see
 * what the test asserted, so this library stands between the program and CUnit (LD_PRELOAD) and appends one line
 * per event to the file named by $ASSERTIONS:
 *
 *     holds   TEST
 *     fails   TEST  FILE:LINE  CONDITION
 *     remark  TEST  FILE:LINE  TEXT          from CU_PASS(TEXT), which asserts nothing
 *
 * with tabs between the fields. The lines are flushed at once: the program may hang and be killed.
 *
 * It also shortens long sleeps: one of libiscsi's tests looks once a minute whether a SANITIZE has come to its end.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef unsigned verdict_fn(unsigned, unsigned, const char *, const char *, const char *, unsigned);

/* Returns a CU_Test, whose first member is the test's name (CUnit 2.1, TestDB.h). */
extern void *CU_get_current_test(void);

static const char *test_name(void)
{
	char **members = CU_get_current_test();

	return members && members[0] ? members[0] : "-";
}

static void note(const char *event, const char *file, unsigned line, const char *text)
{
	static FILE *log;

	if (!log) {
		const char *path = getenv("ASSERTIONS");

		log = fopen(path ? path : "/dev/null", "a");
		if (!log)
			return;
	}
	if (file)
		fprintf(log, "%s\t%s\t%s:%u\t%s\n", event, test_name(), file, line, text);
	else
		fprintf(log, "%s\t%s\n", event, test_name());
	fflush(log);
}

unsigned sleep(unsigned seconds)
{
	static unsigned (*patient)(unsigned);

	if (!patient)
		patient = (unsigned (*)(unsigned))dlsym(RTLD_NEXT, "sleep");
	return patient(seconds < 60 ? seconds : 1);
}

unsigned CU_assertImplementation(unsigned holds, unsigned line, const char *condition, const char *file,
				 const char *function, unsigned fatal)
{
	static verdict_fn *cunit;

	if (!cunit)
		cunit = (verdict_fn *)dlsym(RTLD_NEXT, "CU_assertImplementation");
	if (strncmp(condition, "CU_PASS(", 8) == 0)
		note("remark", file, line, condition);
	else if (holds)
		note("holds", NULL, 0, NULL);
	else
		note("fails", file, line, condition);
	return cunit(holds, line, condition, file, function, fatal);
}
