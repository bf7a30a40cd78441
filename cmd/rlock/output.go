package main

import (
	"errors"
	"os"
	"sync"
	"syscall"

	"golang.org/x/term"
)

// An output is standard output. It keeps the first error of a write, which is the failure of a command without another
// one: no command has to check each write.
type output struct {
	file *os.File

	mu  sync.Mutex // guards err
	err error
}

func (o *output) Write(text []byte) (n int, err error) {
	n, err = o.file.Write(text)
	if err != nil {
		o.mu.Lock()
		defer o.mu.Unlock()
		if o.err == nil {
			o.err = err
		}
	}
	return n, err
}

func (o *output) failed() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.err
}

// width returns how many columns to print in: 80, or fewer on a narrow terminal.
func (a *app) width() int { return widthOf(a.stdout.file) }

func widthOf(f *os.File) int {
	if columns, _, err := term.GetSize(int(f.Fd())); err == nil && columns > 0 {
		return min(columns, 80)
	}
	return 80
}

// paints reports whether a file is a terminal on which lines can be written anew.
func paints(f *os.File) bool { return term.IsTerminal(int(f.Fd())) && os.Getenv("TERM") != "dumb" }

// unprinted is the failure of a command whose output could not be written.
func unprinted(err error) *failure {
	if errors.Is(err, syscall.EPIPE) { // the reader has ended: programs then end without a message
		return &failure{code: exitSignal + int(syscall.SIGPIPE)}
	}
	return &failure{code: exitOutput, text: "what was done stands, but could not be printed: " + plain(err)}
}
