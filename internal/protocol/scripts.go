package protocol

import (
	"fmt"
	"io/fs"
	"maps"
	"path"
	"strings"

	"github.com/go-rlock/rlock/internal/wire"
)

// Scripts are the operations of one client, by the names of their files: "lock/enter".
type Scripts map[string]*wire.Script

// included is the folder of the parts that scripts share.
const included = "shared"

// forMany is the suffix in the name of a script that serves several requests of another script in
// one run; see wire.Script.
const forMany = "_many"

// WhenServed is the suffix of the name of a script's variant that does nothing on a server
// in quarantine. Scripts with a line "-- include quarantine when served" have one.
const WhenServed = " when served"

// Load returns the Scripts of the files of fsys.
func Load(fsys fs.FS, override map[string]string) (Scripts, error) {
	f, err := Read(fsys)
	if err != nil {
		return nil, err
	}
	return f.Scripts(override)
}

// Files are the texts of scripts and of the parts that they share.
type Files struct {
	texts   map[string]string
	scripts Scripts
	parts   map[string]map[string]bool // names of the texts that each script includes, by script
}

// Read reads the files scripts/*/*.lua of fsys. A line "-- include NAME" of a script stands
// for scripts/shared/NAME.lua, unless it was included before; such a file may include
// others. Read fails if an included file does not exist.
func Read(fsys fs.FS) (*Files, error) {
	files, err := fs.Glob(fsys, "scripts/*/*.lua")
	if err != nil {
		return nil, err
	}
	f := &Files{texts: map[string]string{}, scripts: Scripts{}, parts: map[string]map[string]bool{}}
	for _, file := range files {
		text, err := fs.ReadFile(fsys, file)
		if err != nil {
			return nil, err
		}
		f.texts[strings.TrimSuffix(strings.TrimPrefix(file, "scripts/"), ".lua")] = string(text)
	}
	for name := range f.texts {
		if err := f.assemble(name); err != nil {
			return nil, err
		}
	}
	return f, nil
}

// assemble makes a script and its variant. It ignores the parts in the folder included.
func (f *Files) assemble(name string) error {
	if path.Dir(name) == included {
		return nil
	}
	for _, served := range []bool{false, true} {
		in := includer{texts: f.texts, served: served, inclusions: map[string]bool{}}
		if err := in.add(name); err != nil {
			return fmt.Errorf("script %s: %w", name, err)
		}
		variant := name
		if served {
			if !in.inclusions[included+"/"+quarantine] {
				break
			}
			variant += WhenServed
		}
		text := in.out.String()
		f.scripts[variant] = wire.NewScript(name, text, strings.Contains(text, "local function announce("))
		f.parts[name] = in.inclusions // a variant comes second, and includes more files
	}
	return nil
}

// Scripts returns the scripts of the files; override replaces some texts by name, "lock/enter" or
// "shared/ttl". It fails if there is no text of that name, or if one includes a file that does not
// exist.
func (f *Files) Scripts(override map[string]string) (Scripts, error) {
	changed := &Files{texts: maps.Clone(f.texts), scripts: maps.Clone(f.scripts), parts: map[string]map[string]bool{}}
	for name, text := range override {
		if _, ok := f.texts[name]; !ok {
			return nil, fmt.Errorf("there is no script %q", name)
		}
		changed.texts[name] = text
	}
	for name, parts := range f.parts {
		for part := range parts {
			if _, ok := override[part]; !ok {
				continue
			}
			delete(changed.scripts, name+WhenServed)
			if err := changed.assemble(name); err != nil {
				return nil, err
			}
			break
		}
	}
	for name, many := range changed.scripts {
		if name, ok := strings.CutSuffix(name, forMany); ok {
			one := *changed.scripts[name] // others may have different scripts for many
			one.Many = many
			changed.scripts[name] = &one
		}
	}
	return changed.scripts, nil
}

// quarantine is included only in the variants for clients with a failover quarantine.
const quarantine = "quarantine"

// includer assembles one script.
type includer struct {
	texts      map[string]string
	served     bool
	inclusions map[string]bool // texts included so far, by name
	out        strings.Builder
}

func (in *includer) add(name string) error {
	text, ok := in.texts[name]
	if !ok {
		return fmt.Errorf("there is no file %s.lua", name)
	}
	in.inclusions[name] = true
	for line := range strings.Lines(text) {
		what, ok := strings.CutPrefix(strings.TrimRight(line, "\r\n"), "-- include ")
		if !ok {
			in.out.WriteString(line)
			continue
		}
		what, conditional := strings.CutSuffix(what, WhenServed)
		what = included + "/" + what
		if in.inclusions[what] || conditional && !in.served {
			continue
		}
		if err := in.add(what); err != nil {
			return err
		}
	}
	return nil
}
