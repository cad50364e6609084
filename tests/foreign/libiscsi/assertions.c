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
 *
 * And it lets the tool begin on units that have no blocks: before its first test the tool asks for the capacity, and gives
 * up where that is refused. Until a test runs, a refused READ CAPACITY(10) becomes the capacity of one block. What a test
 * asks for is answered by the unit alone.
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

/* The first members of libiscsi's struct scsi_task (scsi-lowlevel.h), which the tool hands over as well. */
struct task {
	int status, cdb_size, direction, expected;
	unsigned char cdb[16];
};

/* What scsi_datain_unmarshall makes of READ CAPACITY(10). */
struct capacity {
	unsigned last_block, block_length;
};

static const void *refused;

struct task *iscsi_scsi_command_sync(void *session, int lun, struct task *task, void *data)
{
	static struct task *(*send)(void *, int, struct task *, void *);

	if (!send)
		send = (struct task * (*)(void *, int, struct task *, void *))dlsym(RTLD_NEXT, "iscsi_scsi_command_sync");
	task = send(session, lun, task, data);
	if (task && task->cdb[0] == 0x25 && task->status == 2 && !CU_get_current_test()) {
		task->status = 0;
		refused = task;
	}
	return task;
}

void *scsi_datain_unmarshall(struct task *task)
{
	static void *(*parse)(struct task *);
	static struct capacity one_block = { 0, 512 };

	if (!parse)
		parse = (void *(*)(struct task *))dlsym(RTLD_NEXT, "scsi_datain_unmarshall");
	if (task && task == refused && task->cdb[0] == 0x25) {
		refused = NULL;
		return &one_block;
	}
	return parse(task);
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
