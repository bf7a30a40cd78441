package protocol

import (
	"fmt"
	"io/fs"
	"path"
	"strings"

	"github.com/go-rlock/rlock/internal/wire"
)

// Scripts are the operations of one client, by the names of their files: "lock/enter".
type Scripts map[string]*wire.Script

// included is the folder of the parts that scripts share.
const included = "shared"

// WhenServed is the suffix of the name of a script's variant that does nothing on a server
// in quarantine. Scripts with a line "-- include quarantine when served" have one.
const WhenServed = " when served"

// Load reads the files scripts/*/*.lua of fsys. A line "-- include NAME" of a script stands
// for scripts/shared/NAME.lua, unless it was included before; such a file may include
// others. override replaces texts by name, "lock/enter" or "shared/ttl". Load fails if an
// included file does not exist, or override has an unknown name.
func Load(fsys fs.FS, override map[string]string) (Scripts, error) {
	files, err := fs.Glob(fsys, "scripts/*/*.lua")
	if err != nil {
		return nil, err
	}
	texts := map[string]string{}
	for _, file := range files {
		text, err := fs.ReadFile(fsys, file)
		if err != nil {
			return nil, err
		}
		name := strings.TrimSuffix(strings.TrimPrefix(file, "scripts/"), ".lua")
		texts[name] = string(text)
	}
	for name, text := range override {
		if _, ok := texts[name]; !ok {
			return nil, fmt.Errorf("there is no script %q", name)
		}
		texts[name] = text
	}
	all := Scripts{}
	for name := range texts {
		if path.Dir(name) == included {
			continue
		}
		for _, served := range []bool{false, true} {
			in := includer{texts: texts, served: served, done: map[string]bool{}}
			if err := in.add(name); err != nil {
				return nil, fmt.Errorf("script %s: %w", name, err)
			}
			text := in.out.String()
			script := wire.NewScript(name, text, strings.Contains(text, "local function announce("))
			if !served {
				all[name] = script
			} else if in.done[quarantine] {
				all[name+WhenServed] = script
			}
		}
	}
	return all, nil
}

// quarantine is included only in the variants for clients with a failover quarantine.
const quarantine = "quarantine"

// includer puts one script together.
type includer struct {
	texts  map[string]string
	served bool
	done   map[string]bool // the parts included so far
	out    strings.Builder
}

func (in *includer) add(name string) error {
	text, ok := in.texts[name]
	if !ok {
		return fmt.Errorf("there is no file %s.lua", name)
	}
	for line := range strings.Lines(text) {
		what, ok := strings.CutPrefix(strings.TrimRight(line, "\r\n"), "-- include ")
		if !ok {
			in.out.WriteString(line)
			continue
		}
		what, conditional := strings.CutSuffix(what, WhenServed)
		if in.done[what] || conditional && !in.served {
			continue
		}
		in.done[what] = true
		if err := in.add(included + "/" + what); err != nil {
			return err
		}
	}
	return nil
}
