// Any function of one number: the entry of a table for each, LANES at a time. Entry 0 is that of the least number.
module table_unit #(
    parameter int LANES = 1,
    parameter int IN_W = 8,
    parameter int IN_SIGNED = 1,
    parameter int OUT_W = 8,
    parameter int DEPTH = 8,
`ifdef UPDATABLE
    parameter int SAMPLE = 1,         // words
`endif
    parameter ENTRIES = ""
) (
    input  logic                   clk,
    input  logic                   rst,
`ifdef UPDATABLE
    input  logic [33:0]            update,
    output logic [33:0]            update_on,
    input  logic [16:0]            change,
    output logic                   bank,         // of the sample to come
`endif
    input  logic [LANES*IN_W-1:0]  in_data,
    input  logic                   in_valid,
    output logic                   in_ready,
    output logic [LANES*OUT_W-1:0] out_data,
    output logic                   out_valid,
    input  logic                   out_ready
);
    logic room, take;
    logic [1:0] valid;
    logic [LANES*OUT_W-1:0] result;

    assign in_ready = room;
    assign take = in_valid && room;

    credits #(.DEPTH(DEPTH), .TAKE(1)) places (.clk, .rst, .take, .give(out_valid && out_ready), .room);

`ifdef UPDATABLE
    logic write;
    logic [IN_W-1:0] write_at;
    logic [OUT_W-1:0] written;
    bank_switch #(.COUNT(SAMPLE)) versions (.clk, .rst, .step(take), .change, .bank);
    chain_tap #(.W(OUT_W), .DEPTH(1 << IN_W)) new_entries (
        .clk, .rst, .update, .update_on, .write, .write_at, .written
    );
`endif

    always_ff @(posedge clk) valid <= rst ? '0 : {valid[0], take};

    generate
        for (genvar i = 0; i < LANES; i++) begin : lane
            logic [IN_W-1:0] at;
            logic [OUT_W-1:0] read, entry;
            assign at = in_data[i*IN_W +: IN_W] ^ ((IN_SIGNED != 0) ? IN_W'(1 << (IN_W - 1)) : '0);
`ifdef UPDATABLE
            bank_memory #(.W(OUT_W), .DEPTH(1 << IN_W), .FILE(ENTRIES)) entries (
                .clk, .write, .write_at, .written, .shadow(!change[16]), .bank, .at, .word(read)
            );
`else
            logic [OUT_W-1:0] entries [1 << IN_W];
            initial $readmemh(ENTRIES, entries);
            always_ff @(posedge clk) read <= entries[at];
`endif
            always_ff @(posedge clk) entry <= read;
            assign result[i*OUT_W +: OUT_W] = entry;
        end
    endgenerate

    output_fifo #(.W(LANES * OUT_W), .DEPTH(DEPTH)) results (
        .clk, .rst, .in_data(result), .in_valid(valid[1]), .out_data, .out_valid, .out_ready
    );
endmodule
