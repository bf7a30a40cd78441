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

// Process is the process of a client, as the client describes itself. It is zero if unknown. See rlock.Process.
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

// began is about when this process began.
var began = time.Now()

// This returns this process, with a label.
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

// introduction is a Process in the form that is stored in Redis.
type introduction struct {
	Client string `json:"client,omitempty"` // the whole id
	Process
}

// Text returns the value of a client's key.
func (p Process) Text(client string) string {
	text, err := json.Marshal(introduction{client, p})
	if err != nil {
		return "" // of a year that has more than four digits
	}
	return string(text)
}

// Read reads the value of a client's key. Any user of Redis may have written it.
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

// CheckLabel returns an error if a text is not a valid label.
func CheckLabel(label string) error {
	if len(label) > MaxLabelLength {
		return fmt.Errorf("WithLabel(%.100q): %d bytes long, longer than %d", label, len(label), MaxLabelLength)
	}
	if !utf8.ValidString(label) || strings.ContainsFunc(label, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return fmt.Errorf("WithLabel(%q): not printable", label)
	}
	return nil
}

// ConnectionName returns the name of the connections that the client opens. Redis accepts only printable ASCII without
// blanks.
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
