package main

import (
	"bytes"
	"debug/buildinfo"
	"fmt"
	"runtime/debug"

	cdx "github.com/CycloneDX/cyclonedx-go"
)

// components is the list of what a binary is made of (SBOM), in the form of CycloneDX: the modules that Go has recorded in
// it, and Go itself.
func components(version string, binary []byte) ([]byte, error) {
	info, err := buildinfo.Read(bytes.NewReader(binary))
	if err != nil {
		return nil, err
	}
	if info.Main.Version != version {
		return nil, fmt.Errorf("the binary says that it is %s %s", info.Main.Path, info.Main.Version)
	}
	bom := cdx.NewBOM()
	self := component(cdx.ComponentTypeApplication, &info.Main)
	bom.Metadata = &cdx.Metadata{Component: &self}
	std := debug.Module{Path: "std", Version: info.GoVersion[len("go"):]}
	all := []cdx.Component{component(cdx.ComponentTypeLibrary, &std)}
	for _, m := range info.Deps {
		if m.Replace != nil {
			return nil, fmt.Errorf("the binary has %s in place of %s", m.Replace.Path, m.Path)
		}
		all = append(all, component(cdx.ComponentTypeLibrary, m))
	}
	needs := make([]string, len(all))
	for i, c := range all {
		needs[i] = c.BOMRef
	}
	bom.Components = &all
	bom.Dependencies = &[]cdx.Dependency{{Ref: self.BOMRef, Dependencies: &needs}}
	var b bytes.Buffer
	err = cdx.NewBOMEncoder(&b, cdx.BOMFileFormatJSON).SetPretty(true).EncodeVersion(bom, cdx.SpecVersion1_6)
	return b.Bytes(), err
}

func component(kind cdx.ComponentType, m *debug.Module) cdx.Component {
	url := "pkg:golang/" + m.Path + "@" + m.Version
	return cdx.Component{Type: kind, BOMRef: url, Name: m.Path, Version: m.Version, PackageURL: url}
}
