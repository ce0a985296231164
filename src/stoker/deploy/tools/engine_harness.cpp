// Drives a Verilated engine: loads a model over AXI4-Lite, sends samples from a file and keeps what comes back, with random
// pauses on both sides if asked for. A second model may be loaded while samples are answered, a word a cycle. Watches the
// protocol of the output. `ports.hpp` says how many bytes a word of the streams has; one line of JSON goes to standard
// output. Where changes of bits are counted, those from the first sample on are left in FOLDER/activity.dat.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "Vaccelerator.h"
#include "ports.hpp"
#include "streams.hpp"
#include "verilated.h"
#if VM_COVERAGE
#include "verilated_cov.h"
#endif

namespace {

// Registers and words to write, one after another, as many in a row as the engine takes.
struct Transfers {
    Bytes pairs;
    size_t next = 0;
    uint64_t begun = 0, ended = 0;  // cycles
    bool left() const { return next * 8 < pairs.size(); }
    void offer(Vaccelerator* top, bool now) const {
        now = now && left();
        uint32_t pair[2] = {0, 0};
        if (now) std::memcpy(pair, pairs.data() + next * 8, 8);
        top->s_axi_awaddr = static_cast<uint8_t>(pair[0]);
        top->s_axi_wdata = pair[1];
        top->s_axi_awvalid = top->s_axi_wvalid = now;
        top->s_axi_bready = 1;
    }
    void taken(Vaccelerator* top, uint64_t cycle) {
        if (!top->s_axi_awvalid || !top->s_axi_awready) return;
        if (!next++) begun = cycle;
        ended = cycle + 1;
    }
};

struct Bench {
    VerilatedContext context;
    std::unique_ptr<Vaccelerator> top;
    uint64_t cycle = 0;

    void settle() {
        top->aclk = 0;
        top->eval();
    }
    void edge() {
        top->aclk = 1;
        top->eval();
        ++cycle;
    }
    uint32_t read_register(uint32_t address) {
        top->s_axi_araddr = static_cast<uint8_t>(address);
        top->s_axi_arvalid = top->s_axi_rready = 1;
        for (;;) {
            settle();
            const bool there = top->s_axi_rvalid;
            const uint32_t word = top->s_axi_rdata;
            if (there) top->s_axi_arvalid = 0;
            edge();
            if (there) return word;
        }
    }
};

}  // namespace

int main(int argc, char** argv) {
    if (argc != 9) {
        std::fprintf(stderr, "usage: simulator FOLDER SAMPLES SEED STALL_IN STALL_OUT WORDS_IN WORDS_OUT UPDATE_AFTER\n");
        return 2;
    }
    const std::string folder = argv[1];
    const uint64_t samples = std::strtoull(argv[2], nullptr, 10), seed = std::strtoull(argv[3], nullptr, 10);
    const double stall_in = std::atof(argv[4]), stall_out = std::atof(argv[5]);
    const uint64_t words_in = std::strtoull(argv[6], nullptr, 10), words_out = std::strtoull(argv[7], nullptr, 10);
    const uint64_t update_after = std::strtoull(argv[8], nullptr, 10);  // samples; all of them and more: no update

    Bench bench;
    // All that is not reset begins with random bits: nothing may depend on it.
    bench.context.randReset(2);
    bench.context.randSeed(static_cast<int>(seed + 1));
    bench.top = std::make_unique<Vaccelerator>(&bench.context);
    Vaccelerator* top = bench.top.get();
    const Bytes sent = read_file(folder + "/in.bin");
    if (sent.size() != samples * words_in * DESIGN_BYTES) return std::fprintf(stderr, "in.bin has a wrong size\n"), 3;
    Transfers model{read_file(folder + "/model.bin")}, update;
    if (update_after < samples) update.pairs = read_file(folder + "/update.bin");

    top->s_axi_awvalid = top->s_axi_wvalid = top->s_axi_arvalid = top->s_axi_bready = top->s_axi_rready = 0;
    top->s0_axis_tvalid = top->s0_axis_tlast = top->m0_axis_tready = 0;
    top->aresetn = 0;
    bench.context.assertOn(false);  // before the reset, nothing holds
    for (int at = 0; at < 4; ++at) bench.settle(), bench.edge();
    bench.context.assertOn(true);
    top->aresetn = 1;
    for (int at = 0; at < 2; ++at) bench.settle(), bench.edge();
    while (model.left()) {
        model.offer(top, true);
        bench.settle();
        model.taken(top, bench.cycle);
        bench.edge();
    }
    model.offer(top, false);
    for (int at = 0; at < 4; ++at) bench.settle(), bench.edge();
    const uint32_t digest = bench.read_register(0x04);
    top->s_axi_awaddr = 0x08, top->s_axi_wdata = 0, top->s_axi_awvalid = top->s_axi_wvalid = 1;
    bench.settle(), bench.edge();

#if VM_COVERAGE
    bench.context.coveragep()->zero();  // loading the model does not count
#endif
    Random random(seed);
    const uint64_t begun = bench.cycle;
    uint64_t idle = 0, next_in = 0;
    bool offering = false, stuck = false;
    Out out{DESIGN_BYTES, words_out, {}};
    std::string wrong;
    // A few cycles more than needed: an engine that goes on alone has made something up.
    for (uint64_t more = 0; more < 64 && wrong.empty() && !stuck;) {
        if (!offering && next_in < samples * words_in && !random.chance(stall_in)) {
            offering = true;
            put(top->s0_axis_tdata, sent.data() + next_in * DESIGN_BYTES, DESIGN_BYTES);
            top->s0_axis_tlast = (next_in + 1) % words_in == 0;
        }
        top->s0_axis_tvalid = offering;
        top->m0_axis_tready = out.ready = !random.chance(stall_out);
        update.offer(top, out.done.size() >= update_after);
        bench.settle();
        update.taken(top, bench.cycle);
        bool moved = false;
        if (offering && top->s0_axis_tready) {
            offering = false;
            ++next_in;
            moved = true;
        }
        const bool valid = top->m0_axis_tvalid;
        Bytes word(DESIGN_BYTES);
        get(top->m0_axis_tdata, word.data(), DESIGN_BYTES);
        if (valid && out.next >= samples * words_out) wrong = "more words than the samples have";
        const std::string broken = out.observe(valid, word, top->m0_axis_tlast, bench.cycle - begun);
        if (!broken.empty()) wrong = broken;
        moved = moved || (valid && out.ready);
        bench.edge();
        if (out.next >= samples * words_out && !update.left()) ++more;
        idle = moved || update.left() ? 0 : idle + 1;
        stuck = idle > DESIGN_WATCHDOG && !more;
    }
    top->s0_axis_tvalid = 0;
    top->s_axi_awvalid = top->s_axi_wvalid = 0;
#if VM_COVERAGE
    bench.context.coveragep()->forcePerInstance(true);
    bench.context.coveragep()->write(folder + "/activity.dat");
#endif

    const uint64_t cycles = bench.cycle - begun;
    const uint32_t status = bench.read_register(0x08), counted_in = bench.read_register(0x10), counted_out = bench.read_register(0x14);
    const uint32_t array_cycles = bench.read_register(0x28);
    if (!write_file(folder + "/out.bin", out.data)) return 3;
    std::string when;
    for (uint64_t each : out.done) when += (when.empty() ? "" : ",") + std::to_string(each);
    std::printf(
        "{\"digest\":%u,\"cycles\":%llu,\"done\":[[%s]],\"stuck\":%s,\"full\":[],\"wrong\":\"%s\",\"samples_in\":%u,"
        "\"samples_out\":%u,\"misplaced\":%s,\"array_cycles\":%u,\"load_cycles\":%llu,\"update_cycles\":%llu}\n",
        digest, static_cast<unsigned long long>(cycles), when.c_str(), stuck ? "true" : "false", wrong.c_str(), counted_in,
        counted_out, (status & 2) ? "true" : "false", array_cycles, static_cast<unsigned long long>(model.ended - model.begun),
        static_cast<unsigned long long>(update.ended - update.begun));
    top->final();
    return 0;
}
