/* The requests of Linux' driver for medium changers (ch), each as a command: `chio DEVICE parameters`, `chio DEVICE status TYPE COUNT`,
 * `chio DEVICE element TYPE NUMBER`, `chio DEVICE move FROM-TYPE FROM TO-TYPE TO`, and `exchange` and `position` likewise. Types have the
 * numbers of linux/chio.h: 0 transport, 1 storage, 2 import and export, 3 drive. */
#include <fcntl.h>
#include <linux/chio.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>

static int said(const char *what, int code)
{
	if (code < 0)
		perror(what);
	return code < 0;
}

int main(int words, char **word)
{
	if (words < 3)
		return 2;
	int number[8] = {0};
	for (int at = 3; at < words && at < 11; at++)
		number[at - 3] = atoi(word[at]);
	const char *what = word[2];
	int device = open(word[1], O_RDWR);
	if (device < 0)
		return said(word[1], device);
	if (strcmp(what, "parameters") == 0) {
		struct changer_params have;
		int code = ioctl(device, CHIOGPARAMS, &have);
		if (code == 0)
			printf("%d %d %d %d\n", have.cp_npickers, have.cp_nslots, have.cp_nportals, have.cp_ndrives);
		return said(what, code);
	}
	if (strcmp(what, "status") == 0) {
		unsigned char flags[1024] = {0};
		struct changer_element_status ask = {.ces_type = number[0], .ces_data = flags};
		int code = ioctl(device, CHIOGSTATUS, &ask);
		for (int at = 0; code == 0 && at < number[1]; at++)
			printf("%d\n", flags[at] & CESTATUS_FULL);
		return said(what, code);
	}
	if (strcmp(what, "element") == 0) {
		struct changer_get_element ask = {.cge_type = number[0], .cge_unit = number[1]};
		int code = ioctl(device, CHIOGELEM, &ask);
		if (code == 0)
			printf("%d '%.36s' %d\n", ask.cge_status & CESTATUS_FULL, ask.cge_pvoltag, ask.cge_lun);
		return said(what, code);
	}
	if (strcmp(what, "move") == 0) {
		struct changer_move move = {number[0], number[1], number[2], number[3], 0};
		return said(what, ioctl(device, CHIOMOVE, &move));
	}
	if (strcmp(what, "exchange") == 0) {
		struct changer_exchange pair = {number[0], number[1], number[2], number[3], number[4], number[5], 0};
		return said(what, ioctl(device, CHIOEXCHANGE, &pair));
	}
	if (strcmp(what, "position") == 0) {
		struct changer_position place = {number[0], number[1], 0};
		return said(what, ioctl(device, CHIOPOSITION, &place));
	}
	return 2;
}
