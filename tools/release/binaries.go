package main

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// tool is the folder of the module of the command line tool.
const tool = "cmd/rlock"

// platform is an operating system and a processor, as GOOS and GOARCH name them.
type platform struct{ os, arch string }

var platforms = []platform{
	{"linux", "amd64"}, {"linux", "arm64"},
	{"darwin", "amd64"}, {"darwin", "arm64"},
	{"windows", "amd64"}, {"windows", "arm64"},
}

func (p platform) String() string { return p.os + "/" + p.arch }

// flags are how a released binary is built, so that everybody can build the same one with the same Go: no path of the
// machine is in it. Without symbols it has 70 % of the size, without inlining 90 % of that, and without HTTP/2, which nobody
// speaks on a loopback address, 97 %: the tool waits for Redis and for commands. On amd64 functions begin at multiples of 16
// bytes, as on arm64, not of 32, which saves 1.4 %.
var flags = []string{"-trimpath", "-buildvcs=false", "-ldflags=-s -w -funcalign=16", "-gcflags=all=-l", "-tags=nethttpomithttp2"}

// largest is how many bytes a binary may have: 15 MB.
const largest = 15_000_000

// built is the tool for one platform.
type built struct {
	platform
	binary []byte
}

// binaries builds the command line tool for platforms from the module that env's proxies have, each twice, and writes what
// a release has: an archive and a list of components for each platform, a container image, and the checksums.
func binaries(dir, tmp, out, version string, env []string, platforms []platform) error {
	if err := os.MkdirAll(out, 0o755); err != nil {
		return err
	}
	license, err := os.ReadFile(filepath.Join(dir, "LICENSE"))
	if err != nil {
		return err
	}
	files := map[string][]byte{}
	var images []built
	for _, p := range platforms {
		binary, err := buildTwice(tmp, version, env, p)
		if err != nil {
			return fmt.Errorf("%s: %w", p, err)
		}
		name := "rlock_" + strings.TrimPrefix(version, "v") + "_" + p.os + "_" + p.arch
		archive, pack := name+".tar.gz", tarred
		if p.os == "windows" {
			archive, pack = name+".zip", zipped
		}
		if files[archive], err = pack(content(p, binary, license)); err != nil {
			return err
		}
		if files[name+".cdx.json"], err = components(version, binary); err != nil {
			return err
		}
		if p.os == "linux" {
			images = append(images, built{p, binary})
		}
	}
	if len(images) > 0 {
		name := "rlock_" + strings.TrimPrefix(version, "v") + "_image.tar"
		if files[name], err = image(filepath.Join(tmp, "image"), version, images); err != nil {
			return err
		}
	}
	return write(out, files)
}

// write writes the files of a release and their checksums, in the form that sha256sum -c reads.
func write(out string, files map[string][]byte) error {
	var sums strings.Builder
	for _, name := range slices.Sorted(maps.Keys(files)) {
		fmt.Fprintf(&sums, "%x  %s\n", sha256.Sum256(files[name]), name)
		if err := os.WriteFile(filepath.Join(out, name), files[name], 0o644); err != nil {
			return err
		}
	}
	return os.WriteFile(filepath.Join(out, "SHA256SUMS"), []byte(sums.String()), 0o644)
}

// buildTwice builds a binary, and again from nothing in another folder, and compares the two.
func buildTwice(tmp, version string, env []string, p platform) ([]byte, error) {
	first, err := build(filepath.Join(tmp, "first"), version, env, p)
	if err != nil {
		return nil, err
	}
	second, err := build(filepath.Join(tmp, "second"), version, env, p, "-a")
	switch {
	case err != nil:
		return nil, err
	case !bytes.Equal(first, second):
		return nil, fmt.Errorf("two builds are not equal")
	case len(first) > largest:
		return nil, fmt.Errorf("the binary has %d bytes, more than %d", len(first), largest)
	}
	return first, nil
}

// build builds a binary as go install does it.
func build(gopath, version string, env []string, p platform, more ...string) ([]byte, error) {
	if err := os.MkdirAll(gopath, 0o755); err != nil {
		return nil, err
	}
	// Only without GOBIN go install builds for other platforms, in folders of their own.
	env = append(env, "GOPATH="+gopath, "GOBIN=", "GOOS="+p.os, "GOARCH="+p.arch, "CGO_ENABLED=0")
	args := append(append([]string{"install"}, flags...), append(more, pathOf(tool)+"@"+version)...)
	if err := run(gopath, env, "go", args...); err != nil {
		return nil, err
	}
	found, err := filepath.Glob(filepath.Join(gopath, "bin", "*", "rlock*"))
	if here, _ := filepath.Glob(filepath.Join(gopath, "bin", "rlock*")); err == nil {
		found = append(found, here...)
	}
	if err != nil || len(found) != 1 {
		return nil, fmt.Errorf("go install has written %q: %v", found, err)
	}
	binary, err := os.ReadFile(found[0])
	if err != nil {
		return nil, err
	}
	return binary, os.RemoveAll(filepath.Join(gopath, "bin"))
}

// file is a file of an archive.
type file struct {
	name string
	mode int64
	data []byte
}

func content(p platform, binary, license []byte) []file {
	name := "rlock"
	if p.os == "windows" {
		name += ".exe"
	}
	return []file{{"LICENSE", 0o644, license}, {name, 0o755, binary}}
}

// epoch is the time of all files of archives, which are the same whenever they are made. A zip cannot have an earlier one.
var epoch = time.Date(1980, 1, 1, 0, 0, 0, 0, time.UTC)

func tarred(files []file) ([]byte, error) {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	if err := writeTar(z, files); err != nil {
		return nil, err
	}
	err := z.Close()
	return b.Bytes(), err
}

func writeTar(w io.Writer, files []file) error {
	t := tar.NewWriter(w)
	for _, f := range files {
		h := &tar.Header{Typeflag: tar.TypeReg, Name: f.name, Mode: f.mode, Size: int64(len(f.data)), ModTime: epoch, Format: tar.FormatUSTAR}
		if err := t.WriteHeader(h); err != nil {
			return err
		}
		if _, err := t.Write(f.data); err != nil {
			return err
		}
	}
	return t.Close()
}

func zipped(files []file) ([]byte, error) {
	var b bytes.Buffer
	z := zip.NewWriter(&b)
	for _, f := range files {
		h := &zip.FileHeader{Name: f.name, Method: zip.Deflate, Modified: epoch}
		h.SetMode(os.FileMode(f.mode))
		w, err := z.CreateHeader(h)
		if err != nil {
			return nil, err
		}
		if _, err := w.Write(f.data); err != nil {
			return nil, err
		}
	}
	err := z.Close()
	return b.Bytes(), err
}
