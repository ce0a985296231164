// Control, counters and loading over AXI4-Lite, words of 32 bits:
//   00 identity   04 digest of the running model
//   08 status: 1 stuck, 2 a sample's end was misplaced, 4 a switch waits; a write clears it and the counters
//   0c cycles     10 samples in            14 samples out       18 cycles in which the input waited
//   1c cycles in which the output waited   20 watchdog: cycles without work before the engine counts as stuck; 0: off
//   24 number of FIFOs: 0                  28 cycles in which the array was given a word
//   2c digest of the model to come (written)
//   30 where it goes on (written): memory in bits 28 and on (instructions, weights, tables, scales), its word below
//   34 the next 32 bits of that word, and then of those after it (written)
//   38 written: switch to the loaded model between two samples; read: switches so far
// A write a cycle is taken; one that loads waits while a switch does.
module engine_registers #(
    parameter logic [31:0] LIMIT = 0,
    parameter int LOAD_W = 512,
    parameter int PROGRAM_SLICES = 4,
    parameter int WEIGHT_SLICES = 16,
    parameter int TABLE_SLICES = 5,
    parameter int SCALE_SLICES = 13
) (
    input  logic              clk,
    input  logic              rst,
    input  logic              sample_in,
    input  logic              sample_out,
    input  logic              in_waits,
    input  logic              out_waits,
    input  logic              misplaced,
    input  logic              moved,
    input  logic              array_works,
    input  logic              switched,
    output logic              pending,
    output logic              bank,
    output logic              loaded,       // a model is there
    output logic [3:0]        load_write,   // of each memory
    output logic [19:0]       load_address,
    output logic [LOAD_W-1:0] load_data,    // a word's last bit highest
    input  logic [7:0]        s_axi_awaddr,
    input  logic              s_axi_awvalid,
    output logic              s_axi_awready,
    input  logic [31:0]       s_axi_wdata,
    input  logic              s_axi_wvalid,
    output logic              s_axi_wready,
    output logic [1:0]        s_axi_bresp,
    output logic              s_axi_bvalid,
    input  logic              s_axi_bready,
    input  logic [7:0]        s_axi_araddr,
    input  logic              s_axi_arvalid,
    output logic              s_axi_arready,
    output logic [31:0]       s_axi_rdata,
    output logic [1:0]        s_axi_rresp,
    output logic              s_axi_rvalid,
    input  logic              s_axi_rready
);
    logic [31:0] cycles, samples_in, samples_out, ins_waited, outs_waited, limit, idle, array_cycles;
    logic [31:0] digest, next_digest, switches;
    logic stuck, wrong_end, clear, written, loads;

    assign loads = s_axi_awaddr[7:2] >= 6'h0b;
    assign written = s_axi_awvalid && s_axi_wvalid && (!s_axi_bvalid || s_axi_bready) && !(loads && pending);
    assign s_axi_awready = written;
    assign s_axi_wready = written;
    assign s_axi_bresp = 2'b00;
    assign s_axi_rresp = 2'b00;
    assign s_axi_arready = !s_axi_rvalid;
    assign clear = rst || (written && s_axi_awaddr[7:2] == 6'h02);

    always_ff @(posedge clk) begin
        if (clear) begin
            cycles <= '0;
            samples_in <= '0;
            samples_out <= '0;
            ins_waited <= '0;
            outs_waited <= '0;
            array_cycles <= '0;
            wrong_end <= 1'b0;
            stuck <= 1'b0;
            idle <= '0;
        end else begin
            cycles <= cycles + 1'b1;
            samples_in <= samples_in + 32'(sample_in);
            samples_out <= samples_out + 32'(sample_out);
            ins_waited <= ins_waited + 32'(in_waits);
            outs_waited <= outs_waited + 32'(out_waits);
            array_cycles <= array_cycles + 32'(array_works);
            if (misplaced) wrong_end <= 1'b1;
            idle <= (moved || out_waits || !in_waits) ? '0 : idle + 1'b1;
            if (limit != '0 && idle == limit) stuck <= 1'b1;
        end
    end

    always_ff @(posedge clk) begin
        if (rst) begin
            limit <= LIMIT;
            s_axi_bvalid <= 1'b0;
            s_axi_rvalid <= 1'b0;
        end else begin
            if (written && s_axi_awaddr[7:2] == 6'h08) limit <= s_axi_wdata;
            if (written) s_axi_bvalid <= 1'b1;
            else if (s_axi_bready) s_axi_bvalid <= 1'b0;
            if (s_axi_arvalid && s_axi_arready) s_axi_rvalid <= 1'b1;
            else if (s_axi_rready) s_axi_rvalid <= 1'b0;
        end
    end

    // A word of a memory is put together from words of the bus, the lowest first; they end at the highest bit.
    logic [1:0] memory;
    logic [6:0] slice, slices;
    logic [LOAD_W-1:0] word;
    logic given, complete;
    assign given = written && s_axi_awaddr[7:2] == 6'h0d;
    assign complete = slice == slices - 1'b1;
    always_comb begin
        case (memory)
            2'd0: slices = 7'(PROGRAM_SLICES);
            2'd1: slices = 7'(WEIGHT_SLICES);
            2'd2: slices = 7'(TABLE_SLICES);
            default: slices = 7'(SCALE_SLICES);
        endcase
    end

    always_ff @(posedge clk) begin
        load_write <= '0;
        if (written && s_axi_awaddr[7:2] == 6'h0c) begin
            memory <= s_axi_wdata[29:28];
            load_address <= s_axi_wdata[19:0] - 1'b1;
            slice <= '0;
        end
        if (given) begin
            word <= {s_axi_wdata, word[LOAD_W-1:32]};
            slice <= complete ? '0 : slice + 1'b1;
            if (complete) begin
                load_write[memory] <= 1'b1;
                load_address <= load_address + 1'b1;
            end
        end
        if (rst) load_write <= '0;
    end
    assign load_data = word;

    always_ff @(posedge clk) begin
        if (written && s_axi_awaddr[7:2] == 6'h0b) next_digest <= s_axi_wdata;
        if (rst) begin
            pending <= 1'b0;
            bank <= 1'b0;
            loaded <= 1'b0;
            digest <= '0;
            switches <= '0;
        end else if (switched) begin
            pending <= 1'b0;
            bank <= !bank;
            loaded <= 1'b1;
            digest <= next_digest;
            switches <= switches + 1'b1;
        end else if (written && s_axi_awaddr[7:2] == 6'h0e) pending <= 1'b1;
    end

    always_ff @(posedge clk) begin
        if (s_axi_arvalid && s_axi_arready) begin
            case (s_axi_araddr[7:2])
                6'h00: s_axi_rdata <= 32'h53544f4b;
                6'h01: s_axi_rdata <= digest;
                6'h02: s_axi_rdata <= {29'd0, pending, wrong_end, stuck};
                6'h03: s_axi_rdata <= cycles;
                6'h04: s_axi_rdata <= samples_in;
                6'h05: s_axi_rdata <= samples_out;
                6'h06: s_axi_rdata <= ins_waited;
                6'h07: s_axi_rdata <= outs_waited;
                6'h08: s_axi_rdata <= limit;
                6'h0a: s_axi_rdata <= array_cycles;
                6'h0e: s_axi_rdata <= switches;
                default: s_axi_rdata <= '0;
            endcase
        end
    end

    logic unused;
    assign unused = &{1'b0, s_axi_awaddr[1:0], s_axi_araddr[1:0]};
endmodule
