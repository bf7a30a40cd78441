package presence

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/go-rlock/rlock/internal/visible"
)

// Process is the process of a client, as that says itself; zero: not known. See rlock.Process.
type Process struct {
	Label   string    `json:"label,omitempty"`
	Program string    `json:"program"`
	Host    string    `json:"host"`
	PID     int       `json:"pid"`
	Started time.Time `json:"started"` // in whole seconds
}

const (
	MaxLabelLength = 64 // bytes of a label; users know it as rlock.MaxLabelLength

	mostProgram = MaxLabelLength
	mostHost    = 253 // bytes of a name in DNS
)

// began is when this process did, as far as it knows.
var began = time.Now()

// This is this process.
func This(label string) Process {
	p := unlabeled()
	p.Label = label
	return p
}

var unlabeled = sync.OnceValue(func() Process {
	host, err := os.Hostname()
	if err != nil || host == "" {
		host = "unknown"
	}
	program := "unknown"
	if len(os.Args) > 0 && os.Args[0] != "" {
		program = strings.TrimSuffix(filepath.Base(os.Args[0]), ".exe")
	}
	return Process{
		Program: visible.Cut(program, mostProgram), Host: visible.Cut(host, mostHost),
		PID: os.Getpid(), Started: began.UTC().Truncate(time.Second),
	}
})

// introduction is a Process as Redis has it, for people too.
type introduction struct {
	Client string `json:"client,omitempty"` // the whole id
	Process
}

// Text is how Redis has the process of a client; empty: of one that is not named.
func (p Process) Text(client string) string {
	text, err := json.Marshal(introduction{client, p})
	if err != nil {
		return "" // of a year that has more than four digits
	}
	return string(text)
}

// Read reads such a text, which anybody who may write to Redis can have written.
func Read(text string) (p Process, ok bool) {
	var said introduction
	if json.Unmarshal([]byte(text), &said) != nil || said.Host == "" || said.PID < 0 {
		return Process{}, false
	}
	return Process{
		Label: visible.Cut(said.Label, MaxLabelLength), Program: visible.Cut(said.Program, mostProgram), Host: visible.Cut(said.Host, mostHost),
		PID: said.PID, Started: said.Started.UTC().Truncate(time.Second),
	}, true
}

// CheckLabel reports why a text is no label.
func CheckLabel(label string) error {
	if len(label) > MaxLabelLength {
		return fmt.Errorf("WithLabel(%.100q): %d bytes long, longer than %d", label, len(label), MaxLabelLength)
	}
	if !utf8.ValidString(label) || strings.ContainsFunc(label, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return fmt.Errorf("WithLabel(%q): not printable", label)
	}
	return nil
}

// ConnectionName is what the connections of the process are called that its client opens: Redis takes no
// blanks, and nothing but ASCII.
func (p Process) ConnectionName() string {
	who := p.Label
	if who == "" {
		who = p.Program
	}
	return "rlock:" + strings.Map(func(r rune) rune {
		if r <= ' ' || r > '~' {
			return '_'
		}
		return r
	}, who)
}
