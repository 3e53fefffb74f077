package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"

	"github.com/stelelog/stele"
	"github.com/stelelog/stele/storage"
	"github.com/stelelog/stele/topic"
)

func (s *shownRecords) offline(ctx context.Context, dir string, source stele.QuarantineSource) error {
	return withOffline(dir, func(off *storage.Offline) error {
		frames, err := off.ReadQuarantined(source.Dir, source.Partition, source.Replica)
		if err != nil {
			return err
		}
		r := topic.NewQuarantineReader(frames, source.From)
		defer r.Close()
		for record, err := range r.Records(ctx) {
			if err != nil {
				return err
			}
			l := recordLine{Partition: source.Partition, Offset: int64(record.Offset), Timestamp: record.Timestamp.UnixMilli()}
			l.Key, l.Key64 = textOrBytes(record.Key)
			l.Value, l.Value64 = textOrBytes(record.Value)
			if !s.line(&l) {
				break
			}
		}
		return nil
	})
}

// reclaimByHand removes a directory that a person names in full. That is no call of
// the library, which has none without a proof.
func reclaimByHand(dir, entry string, yes bool, out io.Writer) error {
	return withOffline(dir, func(off *storage.Offline) error {
		e, err := off.Describe(entry)
		if err != nil {
			return err
		}
		q := quarantinedOf(&stele.Quarantined{QuarantineEntry: e})
		q.show(out)
		path := filepath.Join(dir, "quarantine", q.Dir)
		if info, err := os.Lstat(path); err != nil || !info.IsDir() {
			return errors.Join(err, fmt.Errorf("%s is no directory", path))
		}
		if !yes {
			fmt.Fprintln(out, "Nothing was removed: with -yes it goes, for ever")
			return nil
		}
		if err := os.RemoveAll(path); err != nil {
			return err
		}
		fmt.Fprintf(out, "%s is gone\n", path)
		return nil
	})
}

const quarantineAdoptAbout = `
Adopt says whose a directory without a marker is: a topic's that lost it, or one that
was copied to quarantine/ from elsewhere, under any name that ends with ~ and a number.
Its node must not run. All that is in it is verified, and must agree. It says what it
found; with -yes the directory gets its marker. It stays in quarantine, from where
restore makes a topic of its records when the node runs: it is never served itself.
`

func runQuarantineAdopt(ctx context.Context, args []string, io console) error {
	f := newFlags("quarantine adopt", quarantineAdoptAbout, io)
	var cfg stele.AdoptConfig
	f.StringVar(&cfg.Dir, "dir", "", "data `directory` of the stopped node")
	entry := f.String("entry", "", "`name` of the directory, as list prints it, or topics/NAME")
	f.StringVar(&cfg.Topic, "topic", "", "`name` of the topic that it is of")
	life := f.String("incarnation", "", "`id` of the topic's life, 32 hexadecimal digits")
	replica := f.Uint64("replica", 0, "the files of one log are in it, of this replica's `number`")
	partition := f.Uint64("partition", 0, "with -replica: of this partition's `number`")
	yes := f.Bool("yes", false, "do it")
	return f.ask(args, func() string {
		id, err := storage.ParseIncarnation(*life)
		switch {
		case cfg.Dir == "":
			return "-dir is missing: the node's data directory"
		case *entry == "":
			return "-entry is missing: list -dir prints the names"
		case err != nil:
			return fmt.Sprintf("-incarnation: %v", err)
		case *partition > math.MaxUint32:
			return fmt.Sprintf("-partition %d: want a number from 0", *partition)
		}
		cfg.Incarnation, cfg.Entry, cfg.DryRun = id, *entry, !*yes
		cfg.Replica, cfg.Partition = storage.ReplicaID(*replica), uint32(*partition)
		return ""
	}, func(*client) error {
		got, err := stele.Adopt(ctx, cfg)
		if err != nil {
			return err
		}
		for _, l := range got.Logs {
			fmt.Fprintf(io.out, "  partition %d: replica %d, whole, offsets %d to %d\n", l.Partition, l.Replica, l.Start, l.End)
		}
		if cfg.DryRun {
			fmt.Fprintf(io.out, "Nothing was changed: with -yes it is %s\n", got.Dir)
			return nil
		}
		fmt.Fprintf(io.out, "%s is adopted: restore it when the node runs\n", got.Dir)
		return nil
	})
}

// offlineQuarantine is what is in quarantine in the directory of a stopped node.
func offlineQuarantine(dir string) (a quarantineAnswer, err error) {
	err = withOffline(dir, func(off *storage.Offline) error {
		a.Node, a.Quarantined = off.Identity.Name, []quarantinedInfo{}
		for _, d := range off.Quarantined {
			e, err := off.Describe(d.Dir)
			if err != nil {
				return err
			}
			a.Quarantined = append(a.Quarantined, quarantinedOf(&stele.Quarantined{QuarantineEntry: e}))
		}
		return nil
	})
	return a, err
}

// withOffline calls f with what the directory of a stopped node holds, which is locked
// meanwhile.
func withOffline(dir string, f func(off *storage.Offline) error) error {
	dir = filepath.Clean(dir)
	if err := isNodeDir(dir); err != nil {
		return err
	}
	unlock, err := lockStopped(dir)
	if err != nil {
		return err
	}
	defer unlock()
	off, err := storage.ReadOffline(storage.DiskFS(), dir)
	if err != nil {
		return err
	}
	return f(off)
}
