package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
)

// What a release has for this machine is made as for a user: the tool comes from a module proxy, and two builds of it are
// equal; it runs, knows its version, and is small; so does the one in the image, in which there is nothing else.
func TestBinariesOfARelease(t *testing.T) {
	const version = "v0.999.0"
	tmp, out := t.TempDir(), t.TempDir()
	env, err := proxied("../..", tmp, version, published[0], publishedModule{dir: "rlockui"}, publishedModule{dir: tool})
	if err != nil {
		t.Fatal(err)
	}
	// The modules of others come from the cache of this machine. Nothing is written there: a later run, of other sources,
	// would get this version again.
	cache := "file://" + filepath.Join(goEnv(t, "GOMODCACHE"), "cache/download")
	env = append(env, "GOPROXY=file://"+filepath.Join(tmp, "proxy")+","+cache+","+goEnv(t, "GOPROXY"), "GOSUMDB=off")
	p := platform{"linux", runtime.GOARCH}
	if err := binaries("../..", tmp, out, version, env, []platform{p}); err != nil {
		t.Fatal(err)
	}
	// The largest binary is for Windows. The release would find that it is too large only when the tags have been pushed.
	if b, err := build(filepath.Join(tmp, "windows"), version, env, platform{"windows", "amd64"}); err != nil || len(b) > largest {
		t.Errorf("windows/amd64: %v: %d bytes; at most %d", err, len(b), largest)
	}
	name := "rlock_0.999.0_linux_" + runtime.GOARCH
	sumsAreRight(t, out, "rlock_0.999.0_image.tar", name+".cdx.json", name+".tar.gz")

	z, err := gzip.NewReader(bytes.NewReader(read(t, out, name+".tar.gz")))
	if err != nil {
		t.Fatal(err)
	}
	files := untar(t, z)
	if len(files) != 2 || len(files["LICENSE"]) == 0 {
		t.Errorf("the archive has %d files", len(files))
	}
	saysVersion(t, files["rlock"], version)

	var bom struct {
		Metadata struct {
			Component struct{ Name, Version string }
		}
		Components []struct{ Name, Version, Purl string }
	}
	if err := json.Unmarshal(read(t, out, name+".cdx.json"), &bom); err != nil {
		t.Fatal(err)
	}
	versions := map[string]string{bom.Metadata.Component.Name: bom.Metadata.Component.Version}
	for _, c := range bom.Components {
		versions[c.Name] = c.Version
		if want := "pkg:golang/" + c.Name + "@" + c.Version; c.Purl != want {
			t.Errorf("%q is not %q", c.Purl, want)
		}
	}
	if versions[pathOf(tool)] != version || versions[root] != version || "go"+versions["std"] != runtime.Version() || versions["github.com/redis/go-redis/v9"] == "" {
		t.Errorf("components: %v", versions)
	}

	in := inImage(t, read(t, out, "rlock_0.999.0_image.tar"), version)
	if len(in) != 2 || !bytes.HasPrefix(in["etc/ssl/certs/ca-certificates.crt"], []byte("-----BEGIN CERTIFICATE-----")) {
		t.Errorf("the image has %d files", len(in))
	}
	if !bytes.Equal(in["rlock"], files["rlock"]) {
		t.Error("the image has another binary than the archive")
	}
}

// inImage returns the files of the image for this machine, as a container has them.
func inImage(t *testing.T, whole []byte, version string) map[string][]byte {
	dir := t.TempDir()
	for name, data := range untar(t, bytes.NewReader(whole)) {
		file := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	index, err := layout.ImageIndexFromPath(dir)
	if err != nil {
		t.Fatal(err)
	}
	manifest, err := index.IndexManifest()
	if err != nil || len(manifest.Manifests) != 1 || manifest.Manifests[0].Annotations["io.containerd.image.name"] != repository+":"+version {
		t.Fatal(manifest, err)
	}
	index, err = index.ImageIndex(manifest.Manifests[0].Digest)
	if err != nil {
		t.Fatal(err)
	}
	if manifest, err = index.IndexManifest(); err != nil || len(manifest.Manifests) != 1 || manifest.Manifests[0].Platform.Architecture != runtime.GOARCH {
		t.Fatal(manifest, err)
	}
	img, err := index.Image(manifest.Manifests[0].Digest)
	if err != nil {
		t.Fatal(err)
	}
	config, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	if c := config.Config; len(c.Entrypoint) != 1 || c.Entrypoint[0] != "/rlock" || c.User == "" || c.User == "0" {
		t.Errorf("%+v", c)
	}
	files := mutate.Extract(img)
	defer files.Close()
	return untar(t, files)
}

func saysVersion(t *testing.T, binary []byte, version string) {
	file := filepath.Join(t.TempDir(), "rlock")
	if err := os.WriteFile(file, binary, 0o755); err != nil {
		t.Fatal(err)
	}
	got, err := exec.Command(file, "version").CombinedOutput()
	if want := fmt.Sprintf("rlock %s %s linux/%s\n", version, runtime.Version(), runtime.GOARCH); err != nil || string(got) != want {
		t.Errorf("%v: %q, want %q", err, got, want)
	}
}

func sumsAreRight(t *testing.T, out string, names ...string) {
	want := ""
	for _, name := range names {
		want += fmt.Sprintf("%x  %s\n", sha256.Sum256(read(t, out, name)), name)
	}
	if got := string(read(t, out, "SHA256SUMS")); got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

func read(t *testing.T, dir, name string) []byte {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func untar(t *testing.T, r io.Reader) map[string][]byte {
	t.Helper()
	files := map[string][]byte{}
	for in := tar.NewReader(r); ; {
		h, err := in.Next()
		if err == io.EOF {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		if files[h.Name], err = io.ReadAll(in); err != nil {
			t.Fatal(err)
		}
	}
}

func goEnv(t *testing.T, name string) string {
	out, err := exec.Command("go", "env", name).Output()
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(out))
}
