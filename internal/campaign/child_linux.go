package main

import "syscall"

// childAttributes has nodes end with the campaign, however it ends, and keeps
// the terminal's Ctrl-C from them.
func childAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
}
