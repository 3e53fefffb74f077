package main

import (
	"context"
	"errors"
	"fmt"
	"io"
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
