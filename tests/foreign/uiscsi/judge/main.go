// Judge drives a target through the uiscsi initiator: it logs in as told, writes blocks that say where they belong and in
// which round they were written, reads them back from several goroutines at once, and tells the first thing that is wrong.
//
// It exits with 0 when every block was right, with 1 when something was not.
package main

import (
	"context"
	"encoding/binary"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/uiscsi/uiscsi"
)

var (
	portal   = flag.String("portal", "127.0.0.1:3260", "the target's address")
	iqn      = flag.String("iqn", "", "the target's name")
	lun      = flag.Uint64("lun", 0, "the logical unit")
	erl      = flag.String("erl", "0", "ErrorRecoveryLevel to offer")
	digests  = flag.Bool("digests", false, "offer CRC32C only, for headers and data")
	keys     = flag.String("keys", "", "other keys to offer, as Key=value,Key=value")
	workers  = flag.Int("workers", 4, "goroutines, each with blocks of its own")
	rounds   = flag.Int("rounds", 40, "times that each worker writes and reads its blocks")
	seed     = flag.Uint64("seed", 1, "seed of offsets, lengths and contents")
	within   = flag.Duration("within", 60*time.Second, "longest the whole run may take")
	snack    = flag.Duration("snack", 500*time.Millisecond, "how long to wait before a status is asked for again")
	segments = flag.Uint("segment", 0, "MaxRecvDataSegmentLength to declare")
)

func main() {
	flag.Parse()
	ctx, cancel := context.WithTimeout(context.Background(), *within)
	defer cancel()
	if err := run(ctx); err != nil {
		fmt.Fprintf(os.Stderr, "%v\n", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	var reconnects atomic.Int64
	session, err := uiscsi.Dial(ctx, *portal, options(&reconnects)...)
	if err != nil {
		return fmt.Errorf("login: %w", err)
	}
	defer func() { _ = session.Close() }()
	capacity, err := session.SCSI().ReadCapacity(ctx, *lun)
	if err != nil {
		return fmt.Errorf("capacity: %w", err)
	}
	share := (capacity.LBA + 1) / uint64(*workers)
	if share < 4*spanMax {
		return fmt.Errorf("the device is too small: %d blocks", capacity.LBA+1)
	}
	var group sync.WaitGroup
	failures := make(chan error, *workers)
	for n := range *workers {
		group.Add(1)
		go func() {
			defer group.Done()
			w := worker{session, uint64(n) * share, share, uint64(capacity.BlockSize), rand.New(rand.NewPCG(*seed, uint64(n)))}
			if err := w.work(ctx); err != nil {
				failures <- fmt.Errorf("worker %d: %w", n, err)
			}
		}()
	}
	group.Wait()
	close(failures)
	if err := <-failures; err != nil {
		return err
	}
	fmt.Printf("{\"reconnects\": %d}\n", reconnects.Load())
	return nil
}

func options(reconnects *atomic.Int64) []uiscsi.Option {
	offered := map[string]string{"ErrorRecoveryLevel": *erl}
	for _, pair := range strings.Split(*keys, ",") {
		if key, value, found := strings.Cut(pair, "="); found {
			offered[key] = value
		}
	}
	if *segments != 0 {
		offered["MaxRecvDataSegmentLength"] = fmt.Sprint(*segments)
	}
	list := []uiscsi.Option{
		uiscsi.WithTarget(*iqn),
		uiscsi.WithInitiatorName("iqn.2026-11.org.targe:judge"),
		uiscsi.WithOperationalOverrides(offered),
		uiscsi.WithSNACKTimeout(*snack),
		uiscsi.WithReconnectBackoff(100 * time.Millisecond),
		uiscsi.WithLogger(slog.New(slog.NewTextHandler(io.Discard, nil))),
		uiscsi.WithStateChangeHook(func(state uiscsi.SessionState) {
			if state == uiscsi.SessionReconnecting {
				reconnects.Add(1)
			}
		}),
	}
	if *digests {
		list = append(list, uiscsi.WithHeaderDigest("CRC32C"), uiscsi.WithDataDigest("CRC32C"))
	}
	return list
}

// The most blocks in one command.
const spanMax = 512

type worker struct {
	session     *uiscsi.Session
	first, size uint64
	block       uint64
	random      *rand.Rand
}

func (w *worker) work(ctx context.Context) error {
	// What each block was last written with; zero: never.
	written := make(map[uint64]uint64)
	for round := 1; round <= *rounds; round++ {
		at, count := w.span()
		data := make([]byte, count*w.block)
		for i := range count {
			w.sign(data[i*w.block:(i+1)*w.block], at+i, uint64(round))
		}
		if err := w.session.SCSI().WriteBlocks(ctx, *lun, at, uint32(count), uint32(w.block), data); err != nil {
			return fmt.Errorf("round %d: write of %d blocks at %d: %w", round, count, at, err)
		}
		for i := range count {
			written[at+i] = uint64(round)
		}
		if err := w.check(ctx, written, at, count, round); err != nil {
			return err
		}
		elsewhere, more := w.span()
		if err := w.check(ctx, written, elsewhere, more, round); err != nil {
			return err
		}
	}
	if err := w.session.SCSI().SynchronizeCache(ctx, *lun); err != nil {
		return fmt.Errorf("synchronize cache: %w", err)
	}
	return nil
}

// span picks a range of the worker's own blocks, short ones more often than long ones.
func (w *worker) span() (uint64, uint64) {
	count := uint64(1) << w.random.Uint64N(10)
	return w.first + w.random.Uint64N(w.size-count), count
}

func (w *worker) check(ctx context.Context, written map[uint64]uint64, at, count uint64, round int) error {
	data, err := w.session.SCSI().ReadBlocks(ctx, *lun, at, uint32(count), uint32(w.block))
	if err != nil {
		return fmt.Errorf("round %d: read of %d blocks at %d: %w", round, count, at, err)
	}
	if uint64(len(data)) != count*w.block {
		return fmt.Errorf("round %d: read of %d blocks at %d gave %d bytes", round, count, at, len(data))
	}
	expected := make([]byte, w.block)
	for i := range count {
		last, known := written[at+i]
		if !known {
			continue
		}
		w.sign(expected, at+i, last)
		if got := data[i*w.block : (i+1)*w.block]; string(got) != string(expected) {
			return fmt.Errorf("round %d: block %d should be of round %d and is of block %d, round %d", round, at+i, last,
				binary.BigEndian.Uint64(got), binary.BigEndian.Uint64(got[8:]))
		}
	}
	return nil
}

// sign fills a block with its address, the round, and bytes that follow from both.
func (w *worker) sign(block []byte, lba, round uint64) {
	source := rand.NewPCG(*seed^lba, round)
	for i := 0; i < len(block); i += 8 {
		binary.BigEndian.PutUint64(block[i:], source.Uint64())
	}
	binary.BigEndian.PutUint64(block, lba)
	binary.BigEndian.PutUint64(block[8:], round)
}
