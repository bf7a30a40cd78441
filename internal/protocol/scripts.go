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
	files    map[string][]piece
	scripts  Scripts
	included map[string]map[string]bool // names of the files that each script includes, by script
}

// piece is a part of a file: a text, or the name of a file that is included there.
type piece struct {
	text, file string
	whenServed bool // the file is included only in the variant for WhenServed
}

// split returns the pieces of a file.
func split(text string) (all []piece) {
	begun, end := 0, 0
	for line := range strings.Lines(text) {
		end += len(line)
		what, ok := strings.CutPrefix(strings.TrimRight(line, "\r\n"), "-- include ")
		if !ok {
			continue
		}
		what, whenServed := strings.CutSuffix(what, WhenServed)
		all = append(all, piece{text: text[begun : end-len(line)]}, piece{file: included + "/" + what, whenServed: whenServed})
		begun = end
	}
	return append(all, piece{text: text[begun:]})
}

// Read reads the files scripts/*/*.lua of fsys. A line "-- include NAME" of a script stands
// for scripts/shared/NAME.lua, unless it was included before; such a file may include
// others. Read fails if an included file does not exist.
func Read(fsys fs.FS) (*Files, error) {
	files, err := fs.Glob(fsys, "scripts/*/*.lua")
	if err != nil {
		return nil, err
	}
	f := &Files{files: map[string][]piece{}, scripts: Scripts{}, included: map[string]map[string]bool{}}
	for _, file := range files {
		text, err := fs.ReadFile(fsys, file)
		if err != nil {
			return nil, err
		}
		f.files[strings.TrimSuffix(strings.TrimPrefix(file, "scripts/"), ".lua")] = split(string(text))
	}
	for name := range f.files {
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
		in := includer{files: f.files, served: served, inclusions: map[string]bool{}}
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
		f.scripts[variant] = wire.NewScript(name, func() (text string, publishes bool) {
			text = strings.Join(in.texts, "")
			return text, strings.Contains(text, "local function announce(")
		})
		f.included[name] = in.inclusions // a variant comes second, and includes more files
	}
	return nil
}

// Scripts returns the scripts of the files; override replaces some texts by name, "lock/enter" or
// "shared/ttl". It fails if there is no text of that name, or if one includes a file that does not
// exist.
func (f *Files) Scripts(override map[string]string) (Scripts, error) {
	changed := &Files{files: maps.Clone(f.files), scripts: maps.Clone(f.scripts), included: map[string]map[string]bool{}}
	for name, text := range override {
		if _, ok := f.files[name]; !ok {
			return nil, fmt.Errorf("there is no script %q", name)
		}
		changed.files[name] = split(text)
	}
	for name, files := range f.included {
		for file := range files {
			if _, ok := override[file]; !ok {
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
			changed.scripts[name] = changed.scripts[name].WithMany(many) // others may have different scripts for many
		}
	}
	return changed.scripts, nil
}

// quarantine is included only in the variants for clients with a failover quarantine.
const quarantine = "quarantine"

// includer finds the texts of one script.
type includer struct {
	files      map[string][]piece
	served     bool
	inclusions map[string]bool // files included so far, by name
	texts      []string
}

func (in *includer) add(name string) error {
	pieces, ok := in.files[name]
	if !ok {
		return fmt.Errorf("there is no file %s.lua", name)
	}
	in.inclusions[name] = true
	for _, p := range pieces {
		if p.file == "" {
			in.texts = append(in.texts, p.text)
			continue
		}
		if in.inclusions[p.file] || p.whenServed && !in.served {
			continue
		}
		if err := in.add(p.file); err != nil {
			return err
		}
	}
	return nil
}
