# What the disk boots: reads eight blocks by INT 13h, says what text they begin with on the first serial port, writes them back
# elsewhere, and ends the machine. The disk is wherever the firmware says it is; here that is iSCSI.
	.code16
	.globl	_start
_start:	ljmp	$0, $begin
begin:	cld
	xorw	%ax, %ax
	movw	%ax, %ds
	movw	%ax, %es
	movw	%ax, %ss
	movw	$0x7c00, %sp
	movb	%dl, drive
	movw	$took, %si
	movw	$0x4200, %ax
	int	$0x13
	jc	failed
	movw	$0x8000, %si
	call	say
	movw	$gave, %si
	movw	$0x4300, %ax
	movb	drive, %dl
	int	$0x13
	jc	failed
	movw	$good, %si
	jmp	end
failed:	movw	$bad, %si
end:	call	say
	movw	$0xf4, %dx
	xorb	%al, %al
	outb	%al, %dx
stop:	hlt
	jmp	stop

say:	movw	$0x3f8, %dx
next:	lodsb
	testb	%al, %al
	jz	said
	outb	%al, %dx
	jmp	next
said:	ret

# Disk address packets: length, blocks, where in memory, which block.
took:	.byte	16, 0
	.word	8, 0x8000, 0
	.quad	64
gave:	.byte	16, 0
	.word	8, 0x8000, 0
	.quad	128
drive:	.byte	0
good:	.asciz	"the disk took it back\r\n"
bad:	.asciz	"INT 13h failed\r\n"
	.org	510
	.word	0xaa55
