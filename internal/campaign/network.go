//go:build unix

package main

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
)

// network is where the nodes are: all on loopback, or each in a namespace of
// its own behind a bridge, from which links between two nodes can be cut in one
// direction, while clients reach all of them.
type network struct {
	tag  string // of the names of what was made; empty: loopback
	cuts [][2]int
	made []([]string) // commands that take away what was made
}

// newNetwork makes namespaces for n nodes.
func newNetwork(n int) (*network, error) {
	w := &network{tag: fmt.Sprintf("s%d", os.Getpid())}
	if err := w.build(n); err != nil {
		w.close()
		return nil, err
	}
	return w, nil
}

// subnet has 254 addresses; another campaign at the same time has another.
func (w *network) subnet(host int) string {
	return fmt.Sprintf("10.%d.%d.%d", 200+os.Getpid()%50, os.Getpid()/50%256, host)
}

func (w *network) build(n int) error {
	bridge := w.tag + "br"
	if err := ip("link", "add", bridge, "type", "bridge"); err != nil {
		return err
	}
	w.made = append(w.made, []string{"link", "del", bridge})
	if err := all(
		[]string{"addr", "add", w.subnet(254) + "/24", "dev", bridge},
		[]string{"link", "set", bridge, "up"},
	); err != nil {
		return err
	}
	for i := range n {
		ns, outer := w.namespace(i), fmt.Sprintf("%sv%d", w.tag, i)
		if err := ip("netns", "add", ns); err != nil {
			return err
		}
		w.made = append(w.made, []string{"netns", "del", ns})
		if err := all(
			[]string{"link", "add", outer, "type", "veth", "peer", "name", "eth0", "netns", ns},
			[]string{"link", "set", outer, "master", bridge, "up"},
			[]string{"-n", ns, "addr", "add", w.subnet(i+1) + "/24", "dev", "eth0"},
			[]string{"-n", ns, "link", "set", "lo", "up"},
			[]string{"-n", ns, "link", "set", "eth0", "up"},
		); err != nil {
			return err
		}
	}
	return nil
}

func (w *network) namespace(node int) string { return fmt.Sprintf("%sn%d", w.tag, node) }

// inside gives the command line that runs one in a node's namespace.
func (w *network) inside(node int, args ...string) []string {
	if w.tag == "" {
		return args
	}
	return append([]string{"ip", "netns", "exec", w.namespace(node)}, args...)
}

// addr is where a node has its n-th port.
func (w *network) addr(node, n int, ports []int) string {
	if w.tag == "" {
		return fmt.Sprintf("127.0.0.1:%d", ports[2*node+n])
	}
	return fmt.Sprintf("%s:%d", w.subnet(node+1), 7100+1000*n)
}

// cut drops what a node sends to another, from now on, also of connections
// that exist.
func (w *network) cut(from, to int) error {
	for _, c := range w.cuts {
		if c == [2]int{from, to} {
			return nil
		}
	}
	w.cuts = append(w.cuts, [2]int{from, to})
	return ip("-n", w.namespace(from), "route", "add", "blackhole", w.subnet(to+1)+"/32")
}

// heal takes all cuts away.
func (w *network) heal() error {
	for len(w.cuts) > 0 {
		c := w.cuts[len(w.cuts)-1]
		if err := ip("-n", w.namespace(c[0]), "route", "del", "blackhole", w.subnet(c[1]+1)+"/32"); err != nil {
			return err
		}
		w.cuts = w.cuts[:len(w.cuts)-1]
	}
	return nil
}

// close takes away what was made.
func (w *network) close() {
	for len(w.made) > 0 {
		if err := ip(w.made[len(w.made)-1]...); err != nil {
			fmt.Fprintln(os.Stderr, "campaign:", err)
		}
		w.made = w.made[:len(w.made)-1]
	}
}

func all(commands ...[]string) error {
	for _, c := range commands {
		if err := ip(c...); err != nil {
			return err
		}
	}
	return nil
}

func ip(args ...string) error {
	if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
		return fmt.Errorf("ip %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(string(out)))
	}
	return nil
}
