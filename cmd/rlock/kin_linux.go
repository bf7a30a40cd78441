package main

import (
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// A relative is a process in /proc.
type relative struct {
	pid, parent, group int
	startTime          string // in ticks since the machine began: distinguishes the process from a later one with the same id
}

// living returns all processes that have not ended, and that this process may read.
func living() map[int]relative {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	all := make(map[int]relative, len(entries))
	for _, e := range entries {
		if pid, err := strconv.Atoi(e.Name()); err == nil {
			if p, ok := readRelative(pid); ok {
				all[pid] = p
			}
		}
	}
	return all
}

func readRelative(pid int) (p relative, ok bool) {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return p, false
	}
	// The name of the program is in parentheses, and may have any character.
	fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
	if len(fields) < 20 || fields[0] == "Z" || fields[0] == "X" {
		return p, false
	}
	p.pid, p.startTime = pid, fields[19]
	p.parent, _ = strconv.Atoi(fields[1])
	p.group, _ = strconv.Atoi(fields[2])
	return p, true
}

// outside returns the processes that descend from the process from, or from the group of its command, and are not in that
// group, such as the command of another rlock that the command runs. It leaves out except, the guard.
func outside(from, group, except int) (found []relative) {
	all := living()
	descends := map[int]bool{from: true, except: false}
	var isDescendant func(pid, depth int) bool
	isDescendant = func(pid, depth int) bool {
		if known, ok := descends[pid]; ok {
			return known
		}
		p, ok := all[pid]
		yes := ok && depth < len(all) && (p.group == group || isDescendant(p.parent, depth+1))
		descends[pid] = yes
		return yes
	}
	for pid, p := range all {
		if pid != from && p.group != group && isDescendant(pid, 0) {
			found = append(found, p)
		}
	}
	return found
}

// under returns the processes whose environment has the mark of a hold, and that are not in the group of its command.
func under(hold string, group, except int) (found []relative) {
	for pid, p := range living() {
		if p.group == group || pid == except {
			continue
		}
		environ, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/environ")
		if err != nil {
			continue // a process of another user
		}
		for v := range strings.SplitSeq(string(environ), "\x00") {
			name, value, _ := strings.Cut(v, "=")
			if (name == holdVariable || name == outerVariable) && slices.Contains(strings.Fields(value), hold) {
				found = append(found, p)
				break
			}
		}
	}
	return found
}

// signal sends a signal to the process, if it is still the same.
func (p relative) signal(sig syscall.Signal) {
	process, err := os.FindProcess(p.pid) // holds a descriptor, which never means a later process with the same id
	if err != nil {
		return
	}
	defer process.Release()
	if p.lives() {
		_ = process.Signal(sig)
		if sig != unix.SIGKILL {
			_ = process.Signal(unix.SIGCONT)
		}
	}
}

func (p relative) lives() bool {
	now, ok := readRelative(p.pid)
	return ok && now.startTime == p.startTime
}

// hasChildren reports whether this process has children that it has not started: children of a shell that has become it.
func hasChildren() bool {
	self := os.Getpid()
	for _, p := range living() {
		if p.parent == self {
			return true
		}
	}
	return false
}
