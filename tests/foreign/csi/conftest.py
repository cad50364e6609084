"""What the rig of `targe csi` needs before it loads gRPC."""

import os

# Children of this process use no gRPC, and its handlers of forks only wait for its threads.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
