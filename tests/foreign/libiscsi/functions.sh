# What libiscsi's shell tests ask of a target, done by ours. They are run where nobody else is on the network, so that ports are free.
TGTPORTAL=127.0.0.1:3269
IQNTARGET=iqn.2026-11.org.targe:shell
IQNINITIATOR=iqn.2026-11.org.targe:unittest
TGTURL=iscsi://$TGTPORTAL/$IQNTARGET/1
LISTEN="$TGTPORTAL" DIGEST=offer AUTH= REMOVABLE=false PID=

# Options of tgt that the tests use: nop_interval=S, nop_count=N, portal=ADDRESS.
start_target() {
	case "$1" in *nop_interval=*) PINGS='nop_interval = "1s"' ;; *) PINGS= ;; esac
	case "$1" in *portal=*) LISTEN="$LISTEN ${1##*portal=}" ;; esac
}

# Serves what has been asked for so far.
serve() {
	end_target
	(
		umask 077
		{
			printf '%s\n' 'state_dir = "state"' 'admin_socket = "admin/s"' "$PINGS"
			for address in $LISTEN; do printf '%s\n' '[[portal]]' "listen = \"$address\""; done
			printf '%s\n' '[session]' "header_digest = \"$DIGEST\"" '[[target]]' "name = \"$IQNTARGET\"" "$AUTH"
			for lun in LUN*; do
				number=${lun#LUN.}; [ "$lun" = LUN ] && number=1 && block=4096 || block=512
				printf '%s\n' '[[target.lun]]' "lun = $number" 'type = "file"' "path = \"$lun\"" "bs = $block" "removable = $REMOVABLE"
			done
		} > targe.toml
	)
	"$TARGE" serve --config targe.toml >> server.log 2>&1 &
	PID=$!
	until "$TARGE" status --socket admin/s > /dev/null 2>&1; do
		kill -0 "$PID" || { echo "the target does not start"; failure; }
		sleep 0.05
	done
}

# How it ends is judged each time.
end_target() {
	[ -n "$PID" ] || return 0
	"$TARGE" status --json --socket admin/s | grep -q '"bugs": *0[,}]' || { echo "the target counts bugs of its own"; failure; }
	kill "$PID"
	wait "$PID" || { echo "the target ended badly"; failure; }
	! grep "panicked at" server.log || failure
	PID=
}

shutdown_target() { end_target; }
create_lun() { truncate --size=100M LUN; serve; }
delete_lun() { rm LUN; }
create_disk_lun() { truncate --size="$2" "LUN.$1"; serve; }
delete_disk_lun() { rm "LUN.$1"; }
enable_header_digest() { DIGEST=require; }
set_lun_removable() { REMOVABLE=true; serve; }

setup_chap() {
	AUTH='[target.auth]
user = "libiscsi"
secret = "libiscsi-long-enough"
mutual_user = "outgoing"
mutual_secret = "outgoing-long-enough"'
	serve
}

success() { echo "[OK]"; }

failure() {
	echo "[FAILED]"
	[ -z "$PID" ] || kill -9 "$PID"
	exit 1
}
