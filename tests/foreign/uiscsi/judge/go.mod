module judge

go 1.25

// The library is not in a module registry: `run --source` points this at a checkout.
require github.com/uiscsi/uiscsi v0.0.0
