//go:build unix && !linux

package main

import "syscall"

// childAttributes keeps the terminal's Ctrl-C from the nodes.
func childAttributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
