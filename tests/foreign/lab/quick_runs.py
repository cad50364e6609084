"""The quick run of each experiment: from its beginning to its report, with everything that the experiment has and as little of each as
shows it. The tests of a report share its run."""

from lab_runs import Lab, copy_traces, wait_for

# Two workloads that have different names in the figures.
WORKLOADS = """
[[workload]]
access = "sequential"
mix = "read"
block = 512
depth = 32
[[workload]]
access = "random"
mix = "write"
block = "4K"
depth = 1
"""
PLANS = {
    "digests": """
rounds = 2
seconds = 0.1
warmup = 0.02
mtu = [1500, 9000]
depth = [1, 8]
block = ["4K", "64K"]
mix = [50]
load = [100, 60]
link = ["1G", "unshaped"]
""",
    "risk": """
erl = [0, 1, 2]
trials = 26
controls = 4
lengths = [4096]
range = 2097152
""",
    "targets": 'rounds = 2\nseconds = 0.1\nwarmup = 0.02\nconformance = ["login-version"]\n' + WORKLOADS,
    "hyperscsi": """
rounds = 2
seconds = 0.1
warmup = 0.05
link = ["100M", "unshaped"]
mtu = [1500, 9000]
workload = ["read 64K 4", "random-write 4K 1", "stripe-read 256K 1"]
loss = [0.0, 3.0]
traffic = [0, 50]
disturbed_workload = ["read 64K 4"]
copy = []
encrypt = true
aoe = true
""",
    # The same experiment with copies of files, which cost more than all else of it.
    "copies": """
rounds = 2
seconds = 0.05
warmup = 0.0
link = ["unshaped"]
mtu = [1500]
workload = ["read 64K 4"]
loss = [0.0]
traffic = []
disturbed_link = "unshaped"
disturbed_workload = ["read 64K 4"]
copy = ["2 1M", "30 4K"]
copy_link = ["1G"]
""",
    "security": """
rounds = 2
seconds = 0.1
warmup = 0.05
block = ["512", "64K"]
depth = [4]
link = ["100M", "unshaped"]
""",
}
EXPERIMENTS = {"copies": "hyperscsi"}
# The experiments that make network namespaces need root.
NEED_ROOT = PLANS.keys() - {"risk"}


class QuickRun:
    """A run that came to its end and left nothing behind."""

    def __init__(self, name, folder, options=()):
        left = copy_traces()
        self.lab = Lab(EXPERIMENTS.get(name, name), PLANS[name], folder)
        self.out, _ = self.lab.run(*options)
        self.result = self.lab.report()
        assert self.result["ended"] == "complete" and self.result["experiment"] == self.lab.experiment
        assert self.out.startswith(self.result["summary"][0]) and str(self.lab.out / "report.html") in self.out
        assert (self.lab.out / "plan.toml").read_text() == self.result["plan"]
        self.lab.expect_nothing_left()
        if name == "copies":
            wait_for("the end of what the copies made", lambda: copy_traces() <= left)
