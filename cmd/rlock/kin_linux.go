package main

import (
	"bytes"
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
	dir, err := os.Open("/proc")
	if err != nil {
		return nil
	}
	defer dir.Close()
	names, _ := dir.Readdirnames(-1) // what was read before an error
	all := make(map[int]relative, len(names))
	for _, name := range names {
		if pid, err := strconv.Atoi(name); err == nil {
			if p, ok := readRelative(pid); ok {
				all[pid] = p
			}
		}
	}
	return all
}

func readRelative(pid int) (p relative, ok bool) {
	var room [1024]byte
	text := readStat(pid, room[:])
	// The name of the program is in parentheses, and may have any character.
	fields := bytes.Fields(text[bytes.LastIndexByte(text, ')')+1:])
	if len(fields) < 20 || fields[0][0] == 'Z' || fields[0][0] == 'X' {
		return p, false
	}
	p.pid, p.startTime = pid, string(fields[19])
	p.parent, _ = strconv.Atoi(string(fields[1]))
	p.group, _ = strconv.Atoi(string(fields[2]))
	return p, true
}

// readStat reads what /proc has of a process into room. It makes three system calls, where os.ReadFile makes ten: the
// machine may have thousands of processes, and a command that takes a millisecond waits for all of them to be read.
func readStat(pid int, room []byte) []byte {
	fd, err := unix.Open("/proc/"+strconv.Itoa(pid)+"/stat", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	defer unix.Close(fd)
	n, err := unix.Read(fd, room)
	for err == unix.EINTR {
		n, err = unix.Read(fd, room)
	}
	return room[:max(n, 0)]
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
	if unix.Waitid(unix.P_ALL, 0, nil, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil) == unix.ECHILD {
		return false
	}
	self := os.Getpid() // a child that has ended, and that nobody has waited for, is none
	for _, p := range living() {
		if p.parent == self {
			return true
		}
	}
	return false
}
