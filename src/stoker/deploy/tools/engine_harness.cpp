// Drives a Verilated engine: loads a model over AXI4-Lite, sends samples and keeps what comes back, and watches the protocol
// of the output. `ports.hpp` says how many bytes a word of the streams has.
//   simulator FOLDER SAMPLES SEED STALL_IN STALL_OUT WORDS_IN WORDS_OUT UPDATE_AFTER    once, from and to files, with random
//       pauses on both sides if asked for. A second model may be loaded while samples are answered, a word a cycle. One line
//       of JSON goes to standard output. Where changes of bits are counted, those from the first sample on are left in
//       FOLDER/activity.dat.
//   simulator serve SEED WORDS_IN WORDS_OUT    batch after batch over standard input and output, until that ends: two words
//       of 64 bits with the number of samples and the bytes of a model, the model, which is loaded first, and the samples;
//       back come a word with the length of the line of JSON, the line, and the results unless it says that something is
//       wrong.
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

// What a run saw.
struct Seen {
    Out out;
    std::string wrong;
    bool stuck = false;
    uint64_t cycles = 0;
};

void begin(Bench& bench, uint64_t seed) {
    // All that is not reset begins with random bits: nothing may depend on it.
    bench.context.randReset(2);
    bench.context.randSeed(static_cast<int>(seed + 1));
    bench.top = std::make_unique<Vaccelerator>(&bench.context);
    Vaccelerator* top = bench.top.get();
    top->s_axi_awvalid = top->s_axi_wvalid = top->s_axi_arvalid = top->s_axi_bready = top->s_axi_rready = 0;
    top->s0_axis_tvalid = top->s0_axis_tlast = top->m0_axis_tready = 0;
    top->aresetn = 0;
    bench.context.assertOn(false);  // before the reset, nothing holds
    for (int at = 0; at < 4; ++at) bench.settle(), bench.edge();
    bench.context.assertOn(true);
    top->aresetn = 1;
    for (int at = 0; at < 2; ++at) bench.settle(), bench.edge();
}

void load(Bench& bench, Transfers& model) {
    while (model.left()) {
        model.offer(bench.top.get(), true);
        bench.settle();
        model.taken(bench.top.get(), bench.cycle);
        bench.edge();
    }
    model.offer(bench.top.get(), false);
    for (int at = 0; at < 4; ++at) bench.settle(), bench.edge();
}

// Counters of samples and cycles begin again.
void clear_counters(Bench& bench) {
    Vaccelerator* top = bench.top.get();
    top->s_axi_awaddr = 0x08, top->s_axi_wdata = 0, top->s_axi_awvalid = top->s_axi_wvalid = 1;
    bench.settle(), bench.edge();
}

Seen run(Bench& bench, const Bytes& sent, uint64_t samples, uint64_t words_in, uint64_t words_out, Random& random,
         double stall_in, double stall_out, Transfers& update, uint64_t update_after) {
    Vaccelerator* top = bench.top.get();
    const uint64_t begun = bench.cycle;
    uint64_t idle = 0, next_in = 0;
    bool offering = false;
    Seen seen{{DESIGN_BYTES, words_out, {}}, {}};
    Out& out = seen.out;
    // A few cycles more than needed: an engine that goes on alone has made something up.
    for (uint64_t more = 0; more < 64 && seen.wrong.empty() && !seen.stuck;) {
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
        if (valid && out.next >= samples * words_out) seen.wrong = "more words than the samples have";
        const std::string broken = out.observe(valid, word, top->m0_axis_tlast, bench.cycle - begun);
        if (!broken.empty()) seen.wrong = broken;
        moved = moved || (valid && out.ready);
        bench.edge();
        if (out.next >= samples * words_out && !update.left()) ++more;
        idle = moved || update.left() ? 0 : idle + 1;
        seen.stuck = idle > DESIGN_WATCHDOG && !more;
    }
    top->s0_axis_tvalid = 0;
    top->s_axi_awvalid = top->s_axi_wvalid = 0;
    seen.cycles = bench.cycle - begun;
    return seen;
}

// A line of JSON: what was seen, and what the engine's registers say.
std::string told(Bench& bench, const Seen& seen, const Transfers& model, const Transfers& update) {
    const uint32_t digest = bench.read_register(0x04), status = bench.read_register(0x08);
    const uint32_t counted_in = bench.read_register(0x10), counted_out = bench.read_register(0x14);
    const uint32_t array_cycles = bench.read_register(0x28);
    std::string when;
    for (uint64_t each : seen.out.done) when += (when.empty() ? "" : ",") + std::to_string(each);
    return "{\"digest\":" + std::to_string(digest) + ",\"cycles\":" + std::to_string(seen.cycles) + ",\"done\":[[" + when +
           "]],\"stuck\":" + (seen.stuck ? "true" : "false") + ",\"full\":[],\"wrong\":\"" + seen.wrong + "\",\"samples_in\":" +
           std::to_string(counted_in) + ",\"samples_out\":" + std::to_string(counted_out) + ",\"misplaced\":" +
           ((status & 2) ? "true" : "false") + ",\"array_cycles\":" + std::to_string(array_cycles) + ",\"load_cycles\":" +
           std::to_string(model.ended - model.begun) + ",\"update_cycles\":" + std::to_string(update.ended - update.begun) + "}\n";
}

int run_files(Bench& bench, char** argv) {
    const std::string folder = argv[1];
    const uint64_t samples = std::strtoull(argv[2], nullptr, 10), seed = std::strtoull(argv[3], nullptr, 10);
    const uint64_t words_in = std::strtoull(argv[6], nullptr, 10), words_out = std::strtoull(argv[7], nullptr, 10);
    const uint64_t update_after = std::strtoull(argv[8], nullptr, 10);  // samples; all of them and more: no update
    begin(bench, seed);
    const Bytes sent = read_file(folder + "/in.bin");
    if (sent.size() != samples * words_in * DESIGN_BYTES) return std::fprintf(stderr, "in.bin has a wrong size\n"), 3;
    Transfers model{read_file(folder + "/model.bin")}, update;
    if (update_after < samples) update.pairs = read_file(folder + "/update.bin");
    load(bench, model);
    clear_counters(bench);
#if VM_COVERAGE
    bench.context.coveragep()->zero();  // loading the model does not count
#endif
    Random random(seed);
    const Seen seen =
        run(bench, sent, samples, words_in, words_out, random, std::atof(argv[4]), std::atof(argv[5]), update, update_after);
#if VM_COVERAGE
    bench.context.coveragep()->forcePerInstance(true);
    bench.context.coveragep()->write(folder + "/activity.dat");
#endif
    const std::string line = told(bench, seen, model, update);
    if (!write_file(folder + "/out.bin", seen.out.data)) return 3;
    std::fputs(line.c_str(), stdout);
    return 0;
}

bool take(void* data, size_t bytes) { return std::fread(data, 1, bytes, stdin) == bytes; }

int run_batches(Bench& bench, char** argv) {
    const uint64_t seed = std::strtoull(argv[2], nullptr, 10);
    const uint64_t words_in = std::strtoull(argv[3], nullptr, 10), words_out = std::strtoull(argv[4], nullptr, 10);
    begin(bench, seed);
    Random random(seed);
    for (uint64_t head[2]; take(head, sizeof head);) {
        const uint64_t samples = head[0];
        Transfers model, none;
        model.pairs.resize(head[1]);
        if (!take(model.pairs.data(), model.pairs.size())) return 3;
        Bytes sent(samples * words_in * DESIGN_BYTES);
        if (!take(sent.data(), sent.size())) return 3;  // whoever sent it is gone
        load(bench, model);
        clear_counters(bench);
        const Seen seen = run(bench, sent, samples, words_in, words_out, random, 0, 0, none, samples + 1);
        const std::string line = told(bench, seen, model, none);
        const uint64_t size = line.size();
        std::fwrite(&size, sizeof size, 1, stdout);
        std::fwrite(line.data(), 1, size, stdout);
        if (seen.wrong.empty() && !seen.stuck) std::fwrite(seen.out.data.data(), 1, seen.out.data.size(), stdout);
        if (std::fflush(stdout)) return 3;
    }
    return 0;
}

}  // namespace

int main(int argc, char** argv) {
    const bool serves = argc == 5 && std::string(argv[1]) == "serve";
    if (!serves && argc != 9) {
        std::fprintf(stderr, "usage: simulator FOLDER SAMPLES SEED STALL_IN STALL_OUT WORDS_IN WORDS_OUT UPDATE_AFTER | serve SEED WORDS_IN WORDS_OUT\n");
        return 2;
    }
    Bench bench;
    const int status = serves ? run_batches(bench, argv) : run_files(bench, argv);
    bench.top->final();
    return status;
}
