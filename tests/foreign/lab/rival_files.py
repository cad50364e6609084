"""Rival files of `targe lab targets`: targets that fail in one way each."""

# One that nobody has.
ABSENT = """
title = "Absent"
about = "a target that nobody has"
version = "echo none"
backing = "nothing"
programs = ["no-such-target"]
serve = "exec no-such-target"
"""
# One that starts and serves nothing.
MUTE = """
title = "Mute"
about = "a program that listens nowhere"
version = "echo 1"
backing = "nothing"
serve = "echo this is no target >&2; exit 1"
"""
# One that dies when there is a file named by MORTAL_ENDS in its environment.
MORTAL = """
title = "Mortal"
about = "a target that dies"
version = "echo 1"
backing = "a file in tmpfs"
serve = '''
"$TARGE" serve --listen "$ADDRESS:$PORT" --target "$IQN" --lun "file:$FILE" --state-dir "$DIR/state" --socket "$DIR/admin.sock" &
child=$!
until [ -e "$MORTAL_ENDS" ]; do sleep 0.1; done
echo the disk is on fire >&2
kill -KILL $child
exit 3
'''
"""
# One that accepts no login with digests, and few sessions: one more than it says, which could replace one of the same initiator.
REFUSES_DIGESTS = """
title = "Picky"
about = "targe without digests"
version = "echo 1"
backing = "a file in tmpfs"
prepare = '''
cat > targe.toml <<END
state_dir = "$DIR/state"
admin_socket = "$DIR/admin.sock"
[[portal]]
listen = "$ADDRESS:$PORT"
[session]
header_digest = "forbid"
data_digest = "forbid"
[[target]]
name = "$IQN"
max_sessions = 2
[[target.lun]]
type = "file"
path = "$FILE"
END
'''
serve = 'exec "$TARGE" serve --config "$DIR/targe.toml"'
"""


def written(folder, **texts):
    """Adds rival files to a folder. Returns the option that names them."""
    rivals = folder / "rivals"
    rivals.mkdir(exist_ok=True)
    for name, text in texts.items():
        (rivals / f"{name}.toml").write_text(text)
    return f"--rivals={rivals}"
