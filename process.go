package rlock

import (
	"strconv"
	"time"
)

// Process is the process of a client of this package, as that says itself, or zero: see
// https://go-rlock.github.io/rlock/latest/observing/#who-holds-it
type Process struct {
	Label   string    // of WithLabel
	Program string    // the base name of the executable
	Host    string    // the host's name; in a container mostly that of the container
	PID     int       // as the process itself sees it
	Started time.Time // by the clock of the host, in whole seconds
}

// String is as "billing@web-3 (pid 4121)": label or program; "" if unknown.
func (p Process) String() string {
	if p == (Process{}) {
		return ""
	}
	who := p.Label
	if who == "" {
		who = p.Program
	}
	return who + "@" + p.Host + " (pid " + strconv.Itoa(p.PID) + ")"
}
